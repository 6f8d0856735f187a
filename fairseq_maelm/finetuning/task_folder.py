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

IGNORED = "-100"  # the label that Hugging Face's libraries leave out of the loss
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

    ``write`` writes the tokenized ``files`` (split -> file) to the folder, and returns facts for the manifest, which
    also stores ``options``, the settings that determine the result. The vocabulary goes to ``place`` in the folder. An
    OSError or a ValueError tells which file is missing or not valid, that most tokens are unknown without
    ``allow_unknown``, or that the folder was made from other files or options.
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
    """Read the arrays of a split; a FileNotFoundError or ValueError tells that it is missing or damaged."""
    splits = read_manifest(folder, kind)["splits"]
    if split not in splits:
        raise FileNotFoundError(f"{folder} has no split {split!r}, only {', '.join(splits)}")
    return read_arrays(folder / f"{split}.npz")
