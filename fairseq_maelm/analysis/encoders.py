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
    """A model under analysis.

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
        """Move the model to a device, ready for inference."""

    def hidden_states(self, tokens: Tensor, positions: Optional[Tensor] = None) -> Sequence[Tensor]:
        """Encode.

        Args:
            tokens: <int64>[B, S], padded on the right.
            positions: <int64>[B, S] original positions; 0, 1, 2, ... if not given.

        Returns:
            L + 1 times <float>[B, S, D]: the embeddings, then the states after each layer.
        """

    def encode_line(self, line: str) -> list[int]:
        """Tokens of a line of text, without special symbols around it."""

    def check_data(self, folder: Path) -> None:
        """Refuse a prepared data folder whose tokens are not this model's.

        Raises:
            ValueError: says why.
        """

    def attention_weights(self) -> Optional[Iterator[AttentionWeights]]:
        """The weights of each layer's attention in turn, or None if they are kept in a form that is not known here."""


def open_encoder(path: Path, data: Optional[Path]) -> Encoder:
    """Open a fairseq checkpoint of this package (a file) or a Hugging Face masked language model (a folder).

    Args:
        path: the file or the folder.
        data: the prepared data folder, for dictionary and sentencepiece model when they are not beside a checkpoint.

    Raises:
        FileNotFoundError: if it, or the dictionary of a checkpoint, does not exist.
        ValueError: if it is neither, or transformers is needed and not installed.
    """
    # Each kind brings a large library along; only the one that is needed is imported.
    if path.is_file():
        from fairseq_maelm.analysis.checkpoints import CheckpointEncoder

        return CheckpointEncoder(path, data)
    if (path / "config.json").is_file():
        from fairseq_maelm.analysis.huggingface import HuggingFaceEncoder

        return HuggingFaceEncoder(path)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder without config.json: give a checkpoint file, such as {path / 'checkpoint_best.pt'}, "
            "or a folder that transformers' save_pretrained has written"
        )
    raise FileNotFoundError(f"there is no model {path}")
