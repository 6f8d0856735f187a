"""The interface through which the analysis uses encoders of all kinds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fairseq_maelm.analysis.theorem import AttentionWeights


@dataclass(frozen=True)
class Vocabulary:
    """The special symbols, and how pretraining treated them."""

    size: int  # V
    pad: int
    mask: int
    first: int  # put before every sequence
    last: int | None  # put after every sequence
    line_end: int | None  # put after every line of text
    special: np.ndarray  # <bool>[V] True for symbols that are not text
    masks_special: bool  # whether special symbols may be masked
    consecutive_positions: bool = False  # whether positions are consecutive after masked tokens are dropped


class Encoder(Protocol):
    """A model that computes the states of all its layers."""

    vocabulary: Vocabulary
    num_layers: int  # L
    num_heads: int  # H
    width: int  # D
    max_length: int  # of a sequence, special symbols included
    kind: str  # "mlm" if the encoder saw <mask> in pretraining, "maelm" if not, or "fine-tuned"
    settings: dict[str, Any]  # facts to record in the results

    def to(self, device: str) -> "Encoder":
        """Move the model to a device and return this object."""

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Return the embeddings and the states after each layer, L + 1 times <float>[B, S, D].

        Tokens <int64>[B, S] are padded on the right; their positions <int64>[B, S] are 0, 1, 2, ... by default.
        """

    def masked_logits(self, sequences: list[np.ndarray]) -> Tensor | None:
        """Return logits <float>[masks, V] at the masks of sequences <int64>[n], or None without an LM head."""

    def encode_line(self, line: str) -> list[int]:
        """Return the tokens of a line of text, without special symbols around it."""

    def check_data(self, folder: Path) -> None:
        """Raise a ValueError if the tokens of a prepared data folder are not those of this model."""

    def attention_weights(self) -> Iterator[AttentionWeights] | None:
        """Return the attention weights of each layer, or None if their names are unknown."""


def chosen_layers(name: str, encoder: Encoder, layers: Sequence[int] | None) -> list[int]:
    """Return the chosen layers of a model in order, by default all; raise a ValueError for a layer that it lacks."""
    for layer in layers or ():
        if not 0 <= layer <= encoder.num_layers:
            raise ValueError(f"{name} has no layer {layer}: its layers are 0 (embeddings) to {encoder.num_layers}")
    return list(range(encoder.num_layers + 1)) if layers is None else sorted(set(layers))
