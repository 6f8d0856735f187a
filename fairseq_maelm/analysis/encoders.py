"""What the analysis needs to know of an encoder, wherever it comes from.

Every kind of ``Encoder`` has

    vocabulary         its symbols
    num_layers, num_heads, width    L, H, D
    max_length         the longest sequence, special symbols included
    kind               "mlm" if pretraining showed <mask> to the encoder, "maelm" if it never did, or "fine-tuned"
    settings           what to record about it in the results
    to(device)         moves the model and returns this object, ready for inference
    hidden_states(tokens, positions)    encodes tokens <int64>[B, S], padded on the right, at original positions
                       <int64>[B, S], None for 0, 1, 2, ...; returns L + 1 times <float>[B, S, D]: the embeddings, then
                       the states after each layer
    encode_line(line)  the tokens of a line of text, without special symbols around it
    check_data(folder) refuses, by a ValueError that says why, a prepared data folder whose tokens are not this model's
    attention_weights()    the weights of each layer's attention in turn, or None if their names are not known
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

import numpy as np

if TYPE_CHECKING:
    from fairseq_maelm.analysis.checkpoints import CheckpointEncoder
    from fairseq_maelm.analysis.huggingface import HuggingFaceEncoder


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


Encoder = Union["CheckpointEncoder", "HuggingFaceEncoder"]


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
