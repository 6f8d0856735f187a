"""The comparison of two models and of two tokenizers, for export and import."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.mask_filling import masked_token_logits
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS

# Lengths of the compared sequences, cut to the model's positions.
LENGTHS = (2, 7, 512)
# The largest difference due to rounding, relative to the largest output if that is above 1.
TOLERANCE = 1e-5

PAD = FAIRSEQ_SYMBOLS.index("<pad>")
STATES = "hidden states"

# A function from tokens <int64>[B, S] to outputs by name: of all tokens <float>[B, S, ...], or of sequences or masks
# <float>[n, D].
Computation = Callable[[Tensor], dict[str, Tensor]]


class Agreement(NamedTuple):
    """The largest absolute difference between an output and its expected value, and the largest expected value."""

    what: str
    difference: float
    size: float

    @property
    def holds(self) -> bool:
        """True if the difference is within rounding."""
        return self.difference <= TOLERANCE * max(1.0, self.size)

    def describe(self) -> str:
        """Return one line for the user."""
        return f"{self.what}: largest difference {self.difference:.2e}, largest value {self.size:.2e}"


def comparison_batches(model: MaelmModel, masks: bool) -> list[Tensor]:
    """Return random sequences of ``LENGTHS``, with or without masks: each alone <int64>[1, n], and all in one batch."""
    generator = np.random.default_rng(1)
    bos, eos = (FAIRSEQ_SYMBOLS.index(symbol) for symbol in ("<s>", "</s>"))
    symbols = np.arange(len(FAIRSEQ_SYMBOLS), model.encoder.embed_tokens.num_embeddings)
    symbols = symbols[symbols != model.mask_index]
    sequences = []
    for length in sorted({min(length, model.max_positions()) for length in LENGTHS}):
        sequence = generator.choice(symbols, length)
        sequence[0], sequence[-1] = bos, eos
        if masks:
            # The shortest sequence is <s> and a mask.
            sequence[1 + generator.permutation(length - 1)[: max(1, length // 6)]] = model.mask_index
        sequences.append(sequence)
    return [*(padded([sequence]) for sequence in sequences), padded(sequences)]


def padded(sequences: Sequence[np.ndarray]) -> Tensor:
    """Return sequences <int64>[n] as one batch <int64>[B, S], padded on the right."""
    return torch.from_numpy(pad_rows(list(sequences), np.array([len(sequence) for sequence in sequences]), PAD))


def inside(output: Tensor, tokens: Tensor) -> Tensor:
    """Return an output [B, S, ...] without padding, [n, ...]; an output [n, D] is returned as it is."""
    return output if output.dim() == 2 else output[tokens != PAD]


def checkpoint_outputs(
    model: MaelmModel, view: EncoderView, architecture: str, head: str | None, tokens: Tensor
) -> dict[str, Tensor]:
    """Compute the hidden states of tokens <int64>[B, S], and the scores at masks or of a fine-tuned head."""
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
    """Return the largest difference of each output over all batches, without padding.

    Raises:
        ValueError: an output differs by more than rounding; the message begins with ``problem``.
    """
    worst: dict[str, Agreement] = {}
    for tokens in batches:
        others = found(tokens)
        for what, output in expected(tokens).items():
            one, other = inside(output, tokens), inside(others[what], tokens)
            comparable = one.shape == other.shape and bool(torch.isfinite(other).all())
            difference = float((one - other).abs().max()) if comparable else float("inf")
            last = worst.get(what, Agreement(what, 0.0, 0.0))
            size = max(last.size, float(one.abs().max()))
            worst[what] = Agreement(what, max(last.difference, difference), size)
    return refuse_differences(list(worst.values()), problem)


def refuse_differences(compared: list[Agreement], problem: str) -> list[Agreement]:
    """Return the agreements if all hold; raise a ValueError that names the others."""
    wrong = [f"{each.what} differ by {each.difference:.2g} (of {each.size:.2g})" for each in compared if not each.holds]
    if wrong:
        raise ValueError(f"{problem}: {'; '.join(wrong)}")
    return compared


class Difference(NamedTuple):
    """A text for which two tokenizers give different tokens."""

    text: str
    expected: list[int]
    found: list[int]


def differences(
    expected: Callable[[str], list[int]], found: Callable[[str], list[int]], texts: Sequence[str], ties: bool = False
) -> list[Difference]:
    """Compare two functions that return the tokens of a text without special tokens around them.

    ``ties`` accepts the same tokens in another order: in unigram models, several segmentations of repeated characters
    ("rr r" and "r rr") may have the same best score.
    """
    read = [Difference(text, expected(text), found(text)) for text in texts]
    if ties:
        return [each for each in read if sorted(each.expected) != sorted(each.found)]
    return [each for each in read if each.expected != each.found]
