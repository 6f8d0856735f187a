"""Whether two models compute the same and two tokenizers read the same: the one check of export, import and ONNX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.masked_tokens import masked_token_logits
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS

# Lengths of the sequences that are compared, cut to the model's positions: each alone, and all padded in one batch.
LENGTHS = (2, 7, 512)
# The largest difference that rounding explains where outputs are of size 1 or less; larger outputs may differ by more.
TOLERANCE = 1e-5

PAD = FAIRSEQ_SYMBOLS.index("<pad>")
STATES = "hidden states"

# Tokens <int64>[B, S] to outputs by name: of every token <float>[B, S, ...], or of sequences or masks <float>[n, D].
Computation = Callable[[Tensor], dict[str, Tensor]]


class Agreement(NamedTuple):
    """How far two computations differ: the largest absolute difference, and the largest value of what is expected."""

    what: str
    difference: float
    size: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference."""
        return self.difference <= TOLERANCE * max(1.0, self.size)

    def describe(self) -> str:
        """Return one line for people."""
        return f"{self.what}: largest difference {self.difference:.2e}, largest value {self.size:.2e}"


def comparison_batches(model: MaelmModel, masks: bool) -> list[Tensor]:
    """Return sequences of ``LENGTHS`` <int64>[1, n], with masks or without, and all of them in one batch."""
    generator = np.random.default_rng(1)
    bos, eos = (FAIRSEQ_SYMBOLS.index(symbol) for symbol in ("<s>", "</s>"))
    symbols = np.arange(len(FAIRSEQ_SYMBOLS), model.encoder.embed_tokens.num_embeddings)
    symbols = symbols[symbols != model.mask_index]
    sequences = []
    for length in sorted({min(length, model.max_positions()) for length in LENGTHS}):
        sequence = generator.choice(symbols, length)
        sequence[0], sequence[-1] = bos, eos
        if masks:
            # In the shortest one, <s> alone is not masked.
            sequence[1 + generator.permutation(length - 1)[: max(1, length // 6)]] = model.mask_index
        sequences.append(sequence)
    return [*(padded([sequence]) for sequence in sequences), padded(sequences)]


def padded(sequences: Sequence[np.ndarray]) -> Tensor:
    """Return sequences <int64>[n] as one batch <int64>[B, S], padded on the right."""
    return torch.from_numpy(pad_rows(list(sequences), np.array([len(sequence) for sequence in sequences]), PAD))


def inside(output: Tensor, tokens: Tensor) -> Tensor:
    """Return what an output [B, S, ...] holds at tokens <int64>[B, S] as [n, ...]; one [n, D] is returned as it is."""
    return output if output.dim() == 2 else output[tokens != PAD]


def checkpoint_outputs(
    model: MaelmModel, view: EncoderView, architecture: str, head: str | None, tokens: Tensor
) -> dict[str, Tensor]:
    """Compute hidden states of tokens <int64>[B, S], and the scores of masks or of a fine-tuned head."""
    outputs = {STATES: model.extract_features(tokens)[0]}
    if architecture == "masked-lm":
        outputs[scores_of(architecture)] = masked_token_logits(model, view, [row[row != PAD].numpy() for row in tokens])
    elif architecture != "encoder":
        outputs[scores_of(architecture)] = model(tokens, classification_head_name=head)[0]
    return outputs


def scores_of(architecture: str) -> str:
    """Return the name under which the scores of an architecture, such as "masked-lm", are compared."""
    return f"{architecture} scores"


@torch.no_grad()
def agreements(expected: Computation, found: Computation, batches: Sequence[Tensor], problem: str) -> list[Agreement]:
    """Run two computations on every batch and find the largest difference of each output, padding left out.

    Raises:
        ValueError: they differ by more than rounding; the message begins with the problem.
    """
    worst: dict[str, Agreement] = {}
    for tokens in batches:
        others = found(tokens)
        for what, output in expected(tokens).items():
            one, other = inside(output, tokens), inside(others[what], tokens)
            _, difference, size = worst.get(what, Agreement(what, 0.0, 0.0))
            difference = max(difference, _difference(one, other))
            worst[what] = Agreement(what, difference, max(size, float(one.abs().max())))
    return refuse_differences(list(worst.values()), problem)


def _difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or not torch.isfinite(other).all():
        return float("inf")
    return float((one - other).abs().max())


def refuse_differences(compared: list[Agreement], problem: str) -> list[Agreement]:
    """Return the agreements if all of them hold; else name those that do not in a ValueError."""
    wrong = [f"{each.what} differ by {each.difference:.2g} (of {each.size:.2g})" for each in compared if not each.holds]
    if wrong:
        raise ValueError(f"{problem}: {'; '.join(wrong)}")
    return compared


class Difference(NamedTuple):
    """A text that two tokenizers read differently, with the tokens of both."""

    text: str
    expected: list[int]
    found: list[int]


def differences(
    expected: Callable[[str], list[int]], found: Callable[[str], list[int]], texts: Sequence[str], ties: bool = False
) -> list[Difference]:
    """Compare two functions from texts to tokens, without special tokens around them.

    ``ties`` accepts the same pieces in another order: in unigram models several orders of repeated characters ("rr r"
    and "r rr") may have one score, and either is a best one.
    """
    read = [Difference(text, expected(text), found(text)) for text in texts]
    if ties:
        return [each for each in read if sorted(each.expected) != sorted(each.found)]
    return [each for each in read if each.expected != each.found]
