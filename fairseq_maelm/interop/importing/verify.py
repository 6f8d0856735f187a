"""The source's model and the written checkpoint on one batch: what differs, and by how much."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.interop.importing.source import Source
from fairseq_maelm.models.hub import masked_token_logits
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
    worst: dict[str, float] = {}
    largest: dict[str, float] = {}
    for sequences in _batches(_sequences(lengths, len(source.vocabulary.order))):
        for kind, expected, actual in _pairs(source, model, sequences):
            worst[kind] = max(worst.get(kind, 0.0), _difference(actual, expected))
            largest[kind] = max(largest.get(kind, 0.0), float(expected.abs().max()))
    return Differences(lengths, worst["states"], worst.get("logits"), largest["states"], largest.get("logits"))


def _pairs(source: Source, model: MaelmModel, sequences: list[np.ndarray]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What the source gives and what the model gives for a batch, padding left out."""
    reference, order = source.reference, torch.tensor(source.vocabulary.order)
    pad = model.encoder.padding_idx
    tokens = _padded(sequences, pad)
    inside = tokens.ne(pad)
    theirs, ours = reference.encode(order[tokens])[inside], model.extract_features(tokens)[0][inside]
    yield "states", theirs, ours
    if reference.predict is not None and model.lm_head is not None:
        some = torch.linspace(0, len(theirs) - 1, min(_SCORED_TOKENS, len(theirs))).long()
        # Each head on its own encoder's states: the whole path is compared.
        scores = model.lm_head(ours[some], model.encoder.embed_tokens.weight)
        yield "logits", reference.predict(theirs[some])[:, order], scores
    masked = [sequence for sequence in sequences if model.mask_index in sequence]
    if reference.fill is not None and masked:
        options = source.task_options
        view = EncoderView(masked_input=options["masked_input"], positions=options["encoder_positions"])
        expected = reference.fill(order[_padded(masked, pad)])[:, order]
        yield "logits", expected, masked_token_logits(model, view, masked)
    if reference.score is not None:
        (head,) = model.classification_heads
        expected, actual = reference.score(order[tokens]), model(tokens, classification_head_name=head)[0]
        yield (
            "logits",
            expected if expected.dim() == 2 else expected[inside],
            actual if actual.dim() == 2 else actual[inside],
        )


def _padded(sequences: list[np.ndarray], pad: int) -> Tensor:
    return torch.from_numpy(pad_rows(sequences, np.array([len(sequence) for sequence in sequences]), pad))


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


def _batches(sequences: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    yield sequences
    for sequence in sequences:
        yield [sequence]
