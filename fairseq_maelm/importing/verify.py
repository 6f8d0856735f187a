"""The source's model and the written checkpoint on one batch: what differs, and by how much."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.importing.source import Source
from fairseq_maelm.models.maelm import MaelmModel

# The largest difference that is put down to rounding, as a share of the largest value.
TOLERANCE = 1e-5

_SEED = 1
# Scores of a large vocabulary at every token of a long sequence would take gigabytes.
_SCORED_TOKENS = 64


class Differences(NamedTuple):
    """Largest absolute differences over the batch, and the values that they are to be seen against.

    Attributes:
        lengths: of the sequences.
        states: of the last states.
        logits: of the prediction head, or None without one.
        largest_state: the largest absolute value of the source's states.
        largest_logit: of its logits, or None.
    """

    lengths: list[int]
    states: float
    logits: float | None
    largest_state: float
    largest_logit: float | None

    @property
    def rounding(self) -> bool:
        """Whether nothing but rounding differs: at most 1e-5, or that share of the largest value."""
        pairs = [(self.states, self.largest_state), (self.logits, self.largest_logit)]
        return all(
            difference <= TOLERANCE * max(1.0, largest)
            for difference, largest in pairs
            if difference is not None and largest is not None
        )

    def describe(self) -> str:
        """One line for people."""
        text = f"{self.states:.1e} in the states (largest {self.largest_state:.1f})"
        if self.logits is not None:
            text += f", {self.logits:.1e} in the logits (largest {self.largest_logit:.1f})"
        return f"largest difference: {text}; lengths {', '.join(map(str, self.lengths))}, padded and not"


def compared_lengths(longest: int) -> list[int]:
    """The lengths that are compared: 2, 7 and the longest that has positions."""
    return sorted({length for length in (2, 7) if length < longest} | {longest})


@torch.no_grad()
def compare(source: Source, model: MaelmModel) -> Differences:
    """Run both models on sequences of random tokens, one by one and together with padding.

    Args:
        source: with its reference.
        model: as loaded from the checkpoint.
    """
    lengths = compared_lengths(model.max_positions())
    sequences = _sequences(lengths, len(source.vocabulary.order))
    order = torch.tensor(source.vocabulary.order)
    worst, largest = [0.0, 0.0], [0.0, 0.0]
    for tokens in _batches(sequences):
        theirs, ours = source.reference.encode(order[tokens]), model.extract_features(tokens)[0]
        inside = tokens.ne(model.encoder.padding_idx)
        pairs = [(theirs[inside], ours[inside])]
        if source.reference.predict is not None and model.lm_head is not None:
            some = torch.linspace(0, int(inside.sum()) - 1, min(_SCORED_TOKENS, int(inside.sum()))).long()
            # Each head on its own encoder's states: the whole path is compared.
            their_logits = source.reference.predict(pairs[0][0][some])[:, order]
            pairs.append((their_logits, model.lm_head(pairs[0][1][some], model.encoder.embed_tokens.weight)))
        for kind, (expected, actual) in enumerate(pairs):
            worst[kind] = max(worst[kind], _difference(actual, expected))
            largest[kind] = max(largest[kind], float(expected.abs().max()))
    has_head = source.reference.predict is not None and model.lm_head is not None
    return Differences(lengths, worst[0], worst[1] if has_head else None, largest[0], largest[1] if has_head else None)


def _difference(actual: Tensor, expected: Tensor) -> float:
    difference = float((actual - expected).abs().max())
    return difference if difference == difference else float("inf")


def _sequences(lengths: list[int], vocabulary_size: int) -> list[np.ndarray]:
    """<s>, random tokens, <mask> among them where there is room, </s>; always the same."""
    generator = np.random.default_rng(_SEED)
    sequences = []
    for length in lengths:
        inner = generator.integers(4, vocabulary_size, length - 2)
        inner[: 1 if len(inner) > 1 else 0] = vocabulary_size - 1
        sequences.append(np.concatenate([[0], inner, [2]]))
    return sequences


def _batches(sequences: list[np.ndarray]) -> Iterator[Tensor]:
    longest = max(map(len, sequences))
    yield torch.from_numpy(np.stack([np.pad(each, (0, longest - len(each)), constant_values=1) for each in sequences]))
    for sequence in sequences:
        yield torch.from_numpy(sequence)[None]
