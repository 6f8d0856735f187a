"""Prepare the folder of a fine-tuning task from one file per split, and store and load each split's arrays."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.data.token_files import read_arrays
from fairseq_maelm.files.atomic import atomic_file, copy_file
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder, read_manifest
from fairseq_maelm.text.unknown import check_known
from fairseq_maelm.text.vocabulary import TextEncoder, open_encoder

# The label that Hugging Face's libraries leave out of the loss.
IGNORED = "-100"
WHY_IGNORED = "means that it is to be ignored: leave it out of the file"


def prepare_task_folder(
    output: Path,
    kind: str,
    options: Mapping[str, Any],
    files: Mapping[str, Path],
    vocabulary: Path,
    write: Callable[[Path, TextEncoder], Mapping[str, Any]],
    place: str = ".",
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Prepare a task's folder and return its manifest; reuse an existing folder that was made from the same files.

    Args:
        output: the folder to make; it does not exist until it is complete.
        kind: kind of the folder, as in ``prepare_folder``.
        options: the settings that determine the result; the manifest stores them.
        files: split -> file.
        vocabulary: folder of the vocabulary.
        write: function that writes the tokenized data to the folder, and returns facts for the manifest.
        place: subfolder to which the vocabulary is copied.
        allow_unknown: go on if most tokens are unknown.

    Raises:
        OSError: a file is missing or cannot be written.
        ValueError: a file or the vocabulary is not valid, or the folder was made from other files or options.
    """
    encoder = open_encoder(vocabulary)

    def fill(folder: Path) -> Mapping[str, Any]:
        facts = write(folder, encoder)
        check_known(encoder, ", ".join(map(str, files.values())), allow_unknown)
        for path in encoder.files:
            copy_file(path, folder / place / path.name)
        return facts

    origin = made_from(options, {**{split: [path] for split, path in files.items()}, "vocabulary": encoder.files})
    return prepare_folder(output, kind, origin, fill)


def save_split(folder: Path, split: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of a split as ``SPLIT.npz``."""
    with atomic_file(folder / f"{split}.npz") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_split(folder: Path, kind: str, split: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of a split.

    Raises:
        FileNotFoundError: the folder was not prepared or lacks the split.
        ValueError: another version prepared the folder, or the file is damaged.
    """
    splits = read_manifest(folder, kind)["splits"]
    if split not in splits:
        raise FileNotFoundError(f"{folder} has no split {split!r}, only {', '.join(splits)}")
    return read_arrays(folder / f"{split}.npz")
