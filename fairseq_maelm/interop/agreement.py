"""Whether two models compute the same and two tokenizers read the same: the one check of export, import and ONNX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS

# Tokens of the sequences that are compared, cut to the model's positions: alone, and padded in one batch.
LENGTHS = (2, 7, 512)
# The largest difference that rounding explains, where outputs are of size 1 or less; larger ones may differ more.
TOLERANCE = 1e-5

PAD = FAIRSEQ_SYMBOLS.index("<pad>")

# Sequences <int64>[n] to outputs by name; nothing in them belongs to padding.
Computation = Callable[[list[np.ndarray]], dict[str, Tensor]]


class Agreement(NamedTuple):
    """How far two computations of one thing differ.

    Attributes:
        what: was compared.
        difference: largest absolute one.
        size: largest absolute value of what is expected.
    """

    what: str
    difference: float
    size: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference."""
        return self.difference <= TOLERANCE * max(1.0, self.size)

    def describe(self) -> str:
        """One line for people."""
        return f"{self.what}: largest difference {self.difference:.2e}, largest value {self.size:.2e}"


def comparison_batches(model: MaelmModel, masks: bool) -> list[list[np.ndarray]]:
    """Sequences <int64>[n] of ``LENGTHS``, each as a batch and all as one; the same for every call.

    Args:
        model: whose vocabulary and positions they have.
        masks: put masks into each of them.
    """
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
    return [*([sequence] for sequence in sequences), sequences]


def padded(sequences: Sequence[np.ndarray]) -> Tensor:
    """<int64>[B, S] padded on the right."""
    return torch.from_numpy(pad_rows(list(sequences), np.array([len(sequence) for sequence in sequences]), PAD))


def inside(output: Tensor, tokens: Tensor) -> Tensor:
    """What belongs to tokens <int64>[B, S] of an output [B, S, ...] as [n, ...]; one of sequences [B, D] as it is."""
    return output if output.dim() == 2 else output[tokens != PAD]


@torch.no_grad()
def agreements(
    expected: Computation, found: Computation, batches: Sequence[list[np.ndarray]], problem: str
) -> list[Agreement]:
    """Run both on every batch and find the largest difference of each output.

    Args:
        expected, found: what is compared.
        batches: of sequences.
        problem: what is the case if they differ, for the message.

    Raises:
        ValueError: they differ by more than rounding.
    """
    worst: dict[str, Agreement] = {}
    for batch in batches:
        others = found(batch)
        for what, one in expected(batch).items():
            _, difference, size = worst.get(what, Agreement(what, 0.0, 0.0))
            difference = max(difference, _difference(one, others[what]))
            worst[what] = Agreement(what, difference, max(size, float(one.abs().max())))
    return refuse_differences(list(worst.values()), problem)


def _difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or not torch.isfinite(other).all():
        return float("inf")
    return float((one - other).abs().max())


def refuse_differences(compared: list[Agreement], problem: str) -> list[Agreement]:
    """Return the agreements if all of them hold.

    Raises:
        ValueError: begins with the problem and names those that do not.
    """
    wrong = [f"{each.what} differ by {each.difference:.2g} (of {each.size:.2g})" for each in compared if not each.holds]
    if wrong:
        raise ValueError(f"{problem}: {'; '.join(wrong)}")
    return compared


class Difference(NamedTuple):
    """A text that two tokenizers read differently.

    Attributes:
        text: what was read.
        expected: the one's tokens.
        found: the other's.
    """

    text: str
    expected: list[int]
    found: list[int]


def differences(
    expected: Callable[[str], list[int]], found: Callable[[str], list[int]], texts: Sequence[str], ties: bool = False
) -> list[Difference]:
    """Compare two ways to read texts.

    Args:
        expected, found: functions from a text to its tokens, without special tokens around them.
        texts: to read.
        ties: whether to let pass the same pieces in another order. In unigram models several orders of repeated
            characters ("rr r" and "r rr") may have one score, and either is a best one.
    """
    read = [Difference(text, expected(text), found(text)) for text in texts]
    if ties:
        return [each for each in read if sorted(each.expected) != sorted(each.found)]
    return [each for each in read if each.expected != each.found]
