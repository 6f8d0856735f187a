"""What the analysis needs to know of an encoder, wherever it comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fairseq_maelm.analysis.theorem import AttentionWeights


@dataclass(frozen=True)
class Vocabulary:
    """The symbols that the analysis handles by itself, and how pretraining handled them."""

    size: int  # V
    pad: int
    mask: int
    first: int  # put in front of every sequence
    last: int | None  # put after every sequence
    line_end: int | None  # put after every line of text
    special: np.ndarray  # <bool>[V] True for symbols that stand for no text
    masks_special: bool  # whether special symbols may be masked
    consecutive_positions: bool = False  # whether tokens are numbered without gaps where masked ones are dropped


class Encoder(Protocol):
    """A model that turns tokens into the states of all its layers."""

    vocabulary: Vocabulary
    num_layers: int  # L
    num_heads: int  # H
    width: int  # D
    max_length: int  # of a sequence, special symbols included
    kind: str  # "mlm" if pretraining showed <mask> to the encoder, "maelm" if it never did, or "fine-tuned"
    settings: dict[str, Any]  # what to record about it in the results

    def to(self, device: str) -> "Encoder":
        """Move the model and return this object, ready for inference."""

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Encode tokens <int64>[B, S], padded on the right, at original positions <int64>[B, S] or 0, 1, 2, ...

        Returns:
            L + 1 times <float>[B, S, D]: the embeddings, then the states after each layer.
        """

    def masked_logits(self, sequences: list[np.ndarray]) -> Tensor | None:
        """Score the masks of sequences <int64>[n] as <float>[masks, V], or return None if the model cannot."""

    def encode_line(self, line: str) -> list[int]:
        """Return the tokens of a line of text, without special symbols around it."""

    def check_data(self, folder: Path) -> None:
        """Refuse, by a ValueError that says why, a prepared data folder whose tokens are not this model's."""

    def attention_weights(self) -> Iterator[AttentionWeights] | None:
        """Return the weights of each layer's attention in turn, or None if their names are not known."""


def chosen_layers(name: str, encoder: Encoder, layers: Sequence[int] | None) -> list[int]:
    """Return the chosen layers of a model in order, by default all; one that it lacks is a ValueError."""
    for layer in layers or ():
        if not 0 <= layer <= encoder.num_layers:
            raise ValueError(f"{name} has no layer {layer}: its layers are 0 (embeddings) to {encoder.num_layers}")
    return list(range(encoder.num_layers + 1)) if layers is None else sorted(set(layers))
