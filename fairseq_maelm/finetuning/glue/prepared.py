"""The folder of one prepared GLUE task, as its manifest describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.prepared_folder import read_manifest

INDEX_FOLDER = "index"
"""Holds for every split the numbers under which predictions are handed in, one a line."""


@dataclass(frozen=True)
class TaskFolder:
    """A folder that ``maelm prepare glue`` wrote.

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
        """Read the manifest."""
        manifest = read_manifest(path, "glue")
        return cls(path, manifest["task"], manifest["splits"])

    @property
    def labels(self) -> Optional[tuple[str, ...]]:
        """The classes in order, or None for regression."""
        return TASKS[self.task].labels

    def indices(self, split: str) -> list[str]:
        """The numbers under which the predictions of a split are handed in, in the order of its examples."""
        return (self.path / INDEX_FOLDER / f"{split}.txt").read_text(encoding="ascii").split()
