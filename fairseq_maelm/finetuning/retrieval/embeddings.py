"""Reading the folder that ``maelm embed`` writes."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_maelm.finetuning.retrieval.prepared import read_identifiers
from fairseq_maelm.prepared_folder import read_manifest

EMBEDDINGS = "embeddings.npy"
IDENTIFIERS = "ids.txt"


class Embeddings(NamedTuple):
    """Embedded texts.

    Attributes:
        rows: <float16 or float32>[texts, D], mapped from the file.
        identifiers: of the texts.
        space: in which two folders must agree to be compared: dimension, pooling, similarity and checkpoint.
    """

    rows: np.ndarray
    identifiers: list[str]
    space: dict[str, Any]


def open_embeddings(folder: Path) -> Embeddings:
    """Open a finished folder."""
    manifest = read_manifest(folder, "embeddings")
    rows = np.load(folder / EMBEDDINGS, mmap_mode="r")
    identifiers = read_identifiers(folder / IDENTIFIERS)
    if rows.shape != (manifest["texts"], manifest["dimension"]) or len(identifiers) != len(rows):
        raise ValueError(
            f"the files in {folder} do not belong together: {list(rows.shape)} embeddings, {len(identifiers)} ids, and "
            f"{manifest['texts']} texts in the manifest; embed the texts again"
        )
    space = {"dimension": manifest["dimension"], "checkpoint": manifest["files"]["checkpoint"][0]["sha256"]}
    return Embeddings(
        rows, identifiers, {**space, **{name: manifest["settings"][name] for name in ("pooling", "similarity")}}
    )


def check_comparable(queries: Embeddings, documents: Embeddings) -> None:
    """Refuse embeddings that do not live in one space."""
    for name, theirs in queries.space.items():
        if theirs != documents.space[name]:
            raise ValueError(
                f"queries and documents were embedded differently and cannot be compared: {name} is {theirs!r} and "
                f"{documents.space[name]!r}"
            )
