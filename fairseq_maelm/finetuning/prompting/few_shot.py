"""The few-shot splits of Gao et al. (2021), exactly: K examples of each label for training and K for development."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_maelm.finetuning.prompting.checksums import SPLITS
from fairseq_maelm.finetuning.prompting.tables import GLUE_COLUMNS

logger = logging.getLogger(__name__)

# In the order in which the authors' script makes the splits.
SEEDS = (100, 13, 21, 42, 87)
EXAMPLES_PER_LABEL = 16

# Scores of STS-B below this are one group and the others the second; half of the scale of 0 to 5.
STS_B_MEDIAN = 2.5


class FewShotSplit(NamedTuple):
    """A split, as lines of the task's own file without its header.

    Attributes:
        train: K lines of each label, labels in the order of their first appearance in the shuffled file.
        dev: the next K of each.
    """

    train: list[str]
    dev: list[str]


def group_of(task: str, line: str) -> str:
    """The label by which lines are sampled; for STS-B which half of the scale the score lies in.

    Raises:
        ValueError: if the line has no such column, or the score is no number.
    """
    cells = line.strip().split("\t")
    try:
        if task == "CoLA":
            return cells[1]
        if task == "MRPC":
            return cells[0]
        return str(int(float(cells[-1]) >= STS_B_MEDIAN)) if task == "STS-B" else cells[-1]
    except (IndexError, ValueError):
        raise ValueError(f"{line.strip()[:80]!r} is no line of {task}") from None


def few_shot_splits(
    task: str, lines: Sequence[str], per_label: int = EXAMPLES_PER_LABEL, seeds: Iterable[int] = SEEDS
) -> Iterator[tuple[int, FewShotSplit]]:
    """Sample the splits of a task.

    Lines are shuffled by numpy's legacy generator, seeded for each split. CoLA's file has no header, and the authors'
    script shuffles the very list that it read: each of CoLA's splits is drawn from the order that the seeds before it
    have left. So all of ``SEEDS`` are gone through in their order, whichever are asked for, and other seeds after
    them. Other tasks' splits depend on their own seed alone.

    Args:
        task: a GLUE task.
        lines: of its training file, without a header.
        per_label: K.
        seeds: of the splits to give.

    Yields:
        seed and split, the ones of ``SEEDS`` first.
    """
    wanted = set(seeds)
    order = [*SEEDS, *(seed for seed in dict.fromkeys(seeds) if seed not in SEEDS)]
    shuffled = list(lines)
    for seed in order:
        in_place = task == "CoLA"
        if seed not in wanted and not in_place:
            continue
        shuffled = shuffled if in_place else list(lines)
        # The stream of numpy.random.seed and numpy.random.shuffle, without touching the process's generator.
        np.random.RandomState(seed).shuffle(shuffled)
        if seed in wanted:
            yield seed, _first_of_each(task, shuffled, per_label)


def _first_of_each(task: str, lines: Sequence[str], per_label: int) -> FewShotSplit:
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(group_of(task, line), []).append(line)
    for label, members in groups.items():
        if len(members) < 2 * per_label:
            logger.warning("%s: label %r has only %d examples for both sets", task, label, len(members))
    return FewShotSplit(
        [line for members in groups.values() for line in members[:per_label]],
        [line for members in groups.values() for line in members[per_label : 2 * per_label]],
    )


def md5_of(lines: Sequence[str]) -> str:
    """MD5 of a file of these lines, in hexadecimal digits; for comparison, not for security."""
    return hashlib.md5("".join(lines).encode("utf-8"), usedforsecurity=False).hexdigest()


def known_sums(task: str, seed: int, per_label: int) -> tuple[str, str] | None:
    """MD5 sums of the authors' training and development set; None where they have no such split."""
    if per_label != EXAMPLES_PER_LABEL or seed not in SPLITS.get(task, {}):
        return None
    return SPLITS[task][seed]


def header_and_lines(task: str, lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate a file's header, an empty list for CoLA, from its examples."""
    first = int(GLUE_COLUMNS[task].header)
    return list(lines[:first]), list(lines[first:])
