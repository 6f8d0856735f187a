"""Opening an encoder of any kind for the analysis."""

from pathlib import Path
from typing import Optional

from fairseq_maelm.analysis.encoders import Encoder


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
