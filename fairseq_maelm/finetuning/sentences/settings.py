"""The options of ``maelm prepare sentences`` and ``maelm prepare glue``."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from fairseq_maelm.corpus.tables import Columns
from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.options import check_limits, existing_path, option

# Number of tokens of the shortest pair of texts, special tokens included.
_SHORTEST = 6


@dataclass(frozen=True, kw_only=True)
class SentenceSettings(Columns):
    """The options of ``maelm prepare sentences``."""

    train: Path = option(help="table to train on", type=existing_path, metavar="TABLE")
    valid: Path | None = option(
        None, help="table to choose a checkpoint by (default: a part of --train)", type=existing_path, metavar="TABLE"
    )
    test: Path | None = option(
        None, help="table to test on, with or without labels", type=existing_path, metavar="TABLE"
    )
    regression: bool = option(False, help="treat the labels as numbers")
    valid_fraction: float = option(
        0.1, help="fraction of the training examples, the same for each label, to hold out if there is no --valid",
        minimum=0, maximum=1,
    )  # fmt: skip
    seed: int = option(1, help="random seed of the held-out examples", minimum=0)
    max_length: int | None = option(
        None,
        help="maximum number of tokens in an example; longer examples are truncated now; by default training "
        "truncates them",
        minimum=_SHORTEST,
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def tables(self) -> dict[str, Path]:
        """The given tables, by split."""
        given = {split: getattr(self, split) for split in ("train", "valid", "test")}
        return {split: path for split, path in given.items() if path is not None}


def _train_file(text: str) -> tuple[str, Path]:
    task, _, path = text.partition("=")
    if task not in TASKS or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not TASK=FILE, such as QNLI=train.tsv, with TASK one of {', '.join(TASKS)}"
        )
    return task, existing_path(path)


@dataclass(frozen=True)
class GlueSettings:
    """The options of ``maelm prepare glue``."""

    glue: Path = option(
        help="folder with GLUE's unpacked folders CoLA, SST-2, MRPC, ...",
        type=existing_path,
        metavar="GLUE",
        positional=True,
    )
    tasks: tuple[str, ...] = option(
        (), help=f"tasks among {', '.join(TASKS)} (default: those in GLUE)", metavar="TASK", choices=TASKS
    )
    max_length: int = option(
        512, help="maximum number of tokens in an example; longer examples are truncated", minimum=_SHORTEST
    )
    train_file: tuple[tuple[str, Path], ...] = option(
        (), help="another training file for a task, with the official columns and any number of rows",
        metavar="TASK=FILE", type=_train_file,
    )  # fmt: skip
    accept_counts: bool = option(False, help="accept files whose numbers of rows differ from the official ones")

    def __post_init__(self) -> None:
        check_limits(self)
