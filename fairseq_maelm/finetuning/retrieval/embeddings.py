"""The folder that ``maelm embed`` writes, and reading it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_maelm.finetuning.retrieval.prepared import read_identifiers

EMBEDDINGS = "embeddings.npy"
IDENTIFIERS = "ids.txt"
FACTS = "embeddings.json"
UNFINISHED = EMBEDDINGS + ".partial"

# Two folders can be compared if they agree in these.
_COMPARABLE = ("dimension", "pooling", "similarity", "checkpoint_sha256")


class Embeddings(NamedTuple):
    """Embedded texts.

    Attributes:
        rows: <float16 or float32>[texts, D], mapped from the file.
        identifiers: of the texts.
        facts: what they were made by.
    """

    rows: np.ndarray
    identifiers: list[str]
    facts: dict[str, Any]


def open_embeddings(folder: Path) -> Embeddings:
    """Open a finished folder.

    Raises:
        FileNotFoundError: there is none, or it is not finished.
        ValueError: its files do not belong together.
    """
    if not (folder / FACTS).exists():
        state = "is not finished: give the same `maelm embed` again" if (folder / UNFINISHED).exists() else "is none"
        raise FileNotFoundError(f"{folder} is to be a folder of `maelm embed`, and {state}")
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    rows = np.load(folder / EMBEDDINGS, mmap_mode="r")
    identifiers = read_identifiers(folder / IDENTIFIERS)
    if rows.shape != (facts["texts"], facts["dimension"]) or len(identifiers) != len(rows):
        raise ValueError(
            f"the files in {folder} do not belong together: {list(rows.shape)} embeddings, {len(identifiers)} ids, and "
            f"{facts['texts']} texts in {FACTS}; embed the texts again"
        )
    return Embeddings(rows, identifiers, facts)


def check_comparable(queries: Embeddings, documents: Embeddings) -> None:
    """Refuse embeddings that do not live in one space.

    Raises:
        ValueError: names the difference.
    """
    for name in _COMPARABLE:
        theirs, ours = queries.facts[name], documents.facts[name]
        if theirs != ours:
            raise ValueError(
                f"queries and documents were embedded differently and cannot be compared: {name} is {theirs!r} and "
                f"{ours!r}"
            )
