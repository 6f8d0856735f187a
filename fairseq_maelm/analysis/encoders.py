"""What the analysis needs to know of an encoder, wherever it comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Protocol

import numpy as np
from torch import Tensor

from fairseq_maelm.analysis.theorem import AttentionWeights


@dataclass(frozen=True)
class Vocabulary:
    """The symbols that the analysis handles by itself, and how pretraining handled them.

    Attributes:
        size: V.
        pad: padding.
        mask: [MASK].
        first: put in front of every sequence.
        last: put after every sequence, or None.
        line_end: put after every line of text, or None.
        special: <bool>[V] True for symbols that stand for no text.
        masks_special: whether special symbols may be masked, as in the model's pretraining.
        consecutive_positions: whether pretraining numbered the tokens that are left without gaps when some are dropped.
    """

    size: int
    pad: int
    mask: int
    first: int
    last: Optional[int]
    line_end: Optional[int]
    special: np.ndarray
    masks_special: bool
    consecutive_positions: bool = False


class Encoder(Protocol):
    """A model that turns tokens into the states of all its layers.

    Attributes:
        vocabulary: its symbols.
        num_layers: L.
        num_heads: H.
        width: D.
        max_length: the longest sequence, special symbols included.
        kind: "mlm" if pretraining showed <mask> to the encoder, "maelm" if it never did, or "fine-tuned".
        settings: what to record about it in the results.
    """

    vocabulary: Vocabulary
    num_layers: int
    num_heads: int
    width: int
    max_length: int
    kind: str
    settings: dict[str, Any]

    def to(self, device: str) -> "Encoder":
        """Move the model and return this object, ready for inference."""

    def hidden_states(self, tokens: Tensor, positions: Optional[Tensor] = None) -> Sequence[Tensor]:
        """Encode tokens <int64>[B, S], padded on the right.

        Args:
            tokens: what the encoder sees.
            positions: original ones <int64>[B, S], None for 0, 1, 2, ...

        Returns:
            L + 1 times <float>[B, S, D]: the embeddings, then the states after each layer.
        """

    def encode_line(self, line: str) -> list[int]:
        """The tokens of a line of text, without special symbols around it."""

    def check_data(self, folder: Path) -> None:
        """Refuse, by a ValueError that says why, a prepared data folder whose tokens are not this model's."""

    def attention_weights(self) -> Optional[Iterator[AttentionWeights]]:
        """The weights of each layer's attention in turn, or None if their names are not known."""
