#!/usr/bin/env python3
"""Make the few-shot splits of Gao et al. (2021) from official GLUE folders, exactly.

K examples of each label are for training, K for development, and GLUE's development set is the test set. The MD5 sums
are compared with the authors', from ``data/k-shot/checksum`` of their repository, which come from the copies of GLUE
that they gave out. From the official files come the same splits, but: the authors' dev.tsv of CoLA lacks the last
line's end, which changes the sum of the test set alone; and none of their sums for SST-2 can be had from the official
files, perhaps because theirs were another edition.
"""

import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

# The package is found next to the examples if it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.files.atomic import sha256_of, write_bytes, write_json
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.finetuning.sentences.glue import TASKS, Quirks, read_glue
from fairseq_maelm.options import CommandParser, add_output, existing_path, number

logger = logging.getLogger(__name__)

# In the order in which the authors' script makes the splits.
SEEDS = (100, 13, 21, 42, 87)
EXAMPLES_PER_LABEL = 16

# Scores of STS-B below this are one group and the others the second; half of the scale of 0 to 5.
STS_B_MEDIAN = 2.5

_LINES = Path(__file__).with_name("checksums.txt").read_text(encoding="utf-8").splitlines()[1:]
# Task and seed -> sums of the training and of the development set; task and test set -> its own.
SUMS = {tuple(line.split()[:2]): tuple(line.split()[2:]) for line in _LINES}


class FewShotSplit(NamedTuple):
    """A split, as lines of the task's own file without its header.

    Attributes:
        train: K lines of each label, labels in the order of their first appearance in the shuffled file.
        dev: the next K of each.
    """

    train: list[str]
    dev: list[str]


def group_of(task: str, line: str) -> str:
    """Return the label by which lines are sampled; for STS-B the half of the scale that has the score."""
    cells = line.strip().split("\t")
    try:
        if task == "STS-B":
            return str(int(float(cells[-1]) >= STS_B_MEDIAN))
        return cells[{"CoLA": 1, "MRPC": 0}.get(task, -1)]
    except (IndexError, ValueError):
        raise ValueError(f"{line.strip()[:80]!r} is not a line of {task}") from None


def few_shot_splits(
    task: str, lines: Sequence[str], per_label: int = EXAMPLES_PER_LABEL, seeds: Iterable[int] = SEEDS
) -> Iterator[tuple[int, FewShotSplit]]:
    """Yield seeds and splits of a task, the ones of ``SEEDS`` first.

    Lines are shuffled by numpy's legacy generator, seeded for each split. CoLA's file has no header, and the authors'
    script shuffles the very list that it read: each of CoLA's splits is drawn from the order that the seeds before it
    have left. So all of ``SEEDS`` are gone through in their order, whichever are asked for, and other seeds after
    them. Other tasks' splits depend on their own seed alone.

    Args:
        task: a GLUE task.
        lines: of its training file, without a header.
        per_label: K.
        seeds: of the splits to give.
    """
    wanted = set(seeds)
    shuffled = list(lines)
    for seed in [*SEEDS, *(seed for seed in dict.fromkeys(seeds) if seed not in SEEDS)]:
        if task != "CoLA":
            shuffled = list(lines)
        # The stream of numpy.random.seed and numpy.random.shuffle, without touching the process's generator.
        if seed in wanted or task == "CoLA":
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
    """Return the MD5 of a file of these lines, in hexadecimal digits; for comparison, not for security."""
    return hashlib.md5("".join(lines).encode("utf-8"), usedforsecurity=False).hexdigest()


def known_sums(task: str, seed: int, per_label: int) -> Sequence[str | None]:
    """Return MD5 sums of the authors' training and development set; None where they have no such split."""
    unknown = (None, None)
    return SUMS.get((task, str(seed)), unknown) if per_label == EXAMPLES_PER_LABEL else unknown


def read_lines(task: str, path: Path) -> tuple[list[str], list[str]]:
    """Read a GLUE file's header, an empty list for CoLA, and its lines."""
    try:
        # Like the authors' script with any kind of line end, which decides what a line is.
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from error
    first = int(not TASKS[task].tables["train"][0].header)
    return lines[:first], lines[first:]


def write_task(task: str, source: Path, output: Path, per_label: int, seeds: list[int]) -> dict[str, dict[str, Any]]:
    """Write a task's splits, as GLUE files and as tables; return what is known of each GLUE file."""
    header, lines = read_lines(task, source / "train.tsv")
    suffixes = {"_matched": "valid", "_mismatched": "valid1"} if task == "MNLI" else {"": "valid"}
    tests = {f"test{suffix}.tsv": read_lines(task, source / f"dev{suffix}.tsv") for suffix in suffixes}
    facts: dict[str, dict[str, Any]] = {}
    for test, (suffix, layout) in zip(tests, suffixes.items()):
        write_table(task, layout, source / f"dev{suffix}.tsv", output / "tables" / task / test)
    for seed, split in few_shot_splits(task, lines, per_label, seeds):
        name = f"{task}/{per_label}-{seed}"
        train_sum, dev_sum = known_sums(task, seed, per_label)
        dev = f"dev{next(iter(suffixes))}.tsv"
        files: dict[str, tuple[list[str], str | None]] = {
            "train.tsv": ([*header, *split.train], train_sum),
            dev: ([*header, *split.dev], dev_sum),
            **{test: ([*own, *content], SUMS[task, test][0]) for test, (own, content) in tests.items()},
        }
        for file, (content, md5) in files.items():
            facts[f"{name}/{file}"] = write_glue(content, output / "k-shot" / name / file, md5)
        for file, table in (("train.tsv", "train.tsv"), (dev, "valid.tsv")):
            write_table(task, "train", output / "k-shot" / name / file, output / "tables" / name / table)
    return facts


def write_glue(lines: list[str], path: Path, known: str | None) -> dict[str, Any]:
    """Write a GLUE file; return its sums and whether it is the authors', None where theirs is not known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode("utf-8"))
    # In the authors' copies some last lines have no line end, which does not belong to an example.
    without_end = [*lines[:-1], lines[-1].rstrip("\n")]
    equal = None if known is None else known in (md5_of(lines), md5_of(without_end))
    return {"sha256": sha256_of(path), "md5": md5_of(lines), "equals_gao_et_al": equal}


def write_table(task: str, layout: str, source: Path, path: Path) -> None:
    """Write the examples of a GLUE file as a table: sentences, label; those with an empty sentence are left out.

    Args:
        task: of GLUE.
        layout: split whose columns the file has.
        source: the GLUE file.
        path: of the table.
    """
    quirks = Quirks()
    examples = read_glue(source, TASKS[task].tables[layout][0], TASKS[task], quirks)
    rows = [[*example.texts, str(example.label)] for example in examples if all(example.texts)]
    if quirks.left_out or quirks.empty_sentences:
        counts = (len(quirks.left_out), quirks.empty_sentences)
        logger.warning("%s: left out %d pieces of rows and %d rows with an empty sentence", source, *counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join("\t".join(row) + "\n" for row in rows).encode("utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the splits and print how many equal the authors'."""
    parser = CommandParser(prog="few_shot_splits.py", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "glue", type=existing_path, metavar="GLUE", help="folder with CoLA/train.tsv, CoLA/dev.tsv and so on"
    )
    add_output(parser, "new folder for the splits")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", help="tasks (default: all in GLUE)")
    parser.add_argument(
        "--examples-per-label",
        type=number(int, 1),
        default=EXAMPLES_PER_LABEL,
        metavar="K",
        help="examples of each label",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED", help="seeds of the splits")
    parser.add_argument(
        "--require-checksums", action="store_true",
        help="fail if a split differs from the authors', instead of only warning",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    tasks = args.tasks or [task for task in TASKS if (args.glue / task / "train.tsv").exists()]
    if not tasks:
        raise ValueError(f"there is no task's train.tsv in {args.glue}: give the folder that holds CoLA, SST-2, ...")
    facts: dict[str, dict[str, Any]] = {}
    with whole_folder(args.output, "few_shot_splits.py") as folder:
        for task in tqdm(tasks, unit=" tasks"):
            facts.update(write_task(task, args.glue / task, folder, args.examples_per_label, args.seeds))
        differing = [name for name, fact in facts.items() if fact["equals_gao_et_al"] is False]
        if differing and args.require_checksums:
            raise ValueError(f"these differ from the splits of Gao et al.: {', '.join(differing)}")
        write_json(folder / "manifest.json", {"examples_per_label": args.examples_per_label, "files": facts})
    for task in sorted({name.split("/")[0] for name in differing}):
        logger.warning("the files of %s differ from those of Gao et al., who had another edition of GLUE", task)
    known = sum(fact["equals_gao_et_al"] is not None for fact in facts.values())
    print(
        f"{len(facts)} files in {args.output}; of the {known} with known checksums, {known - len(differing)} equal "
        "those of Gao et al."
    )


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"few_shot_splits.py: error: {error}") from error
