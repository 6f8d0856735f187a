"""The folder of one prepared GLUE task, as its manifest describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.files import read_json
from fairseq_maelm.finetuning.glue.layout import TASKS

MANIFEST_FILE = "manifest.json"
FORMAT = 1

INDEX_FOLDER = "index"
"""Holds for every split the numbers under which predictions are handed in, one a line."""


@dataclass(frozen=True)
class TaskFolder:
    """A folder that ``maelm prepare-glue`` wrote.

    Attributes:
        path: of the folder.
        task: its name in GLUE.
        splits: split -> what the manifest says of it.
    """

    path: Path
    task: str
    splits: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "TaskFolder":
        """Read the manifest.

        Raises:
            FileNotFoundError: the folder was not made by ``maelm prepare-glue``.
            ValueError: it is of another version.
        """
        file = path / MANIFEST_FILE
        if not file.is_file():
            raise FileNotFoundError(f"there is no {file}: give the folder of one task that `maelm prepare-glue` wrote")
        manifest = read_json(file)
        if manifest.get("format") != FORMAT or manifest.get("task") not in TASKS:
            raise ValueError(f"{path} was not written by this version of `maelm prepare-glue`: prepare the task again")
        return cls(path, manifest["task"], manifest["splits"])

    @property
    def labels(self) -> Optional[tuple[str, ...]]:
        """The classes in order, or None for regression."""
        return TASKS[self.task].labels

    def indices(self, split: str) -> list[str]:
        """The numbers under which the predictions of a split are handed in, in the order of its examples."""
        return (self.path / INDEX_FOLDER / f"{split}.txt").read_text(encoding="ascii").split()
