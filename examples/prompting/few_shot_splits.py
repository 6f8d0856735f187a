#!/usr/bin/env python3
"""Make the few-shot splits of Gao et al. (2021) from official GLUE folders, exactly.

K examples of each label are for training, K for development, and GLUE's development set is the test set. The MD5 sums
are compared with the authors', from ``data/k-shot/checksum`` of their repository, which come from the copies of GLUE
that they gave out. From the official files come the same splits, but: the authors' dev.tsv of CoLA lacks the last
line's end, which changes the sum of the test set alone; and none of their sums for SST-2 can be had from the official
files, perhaps because theirs were another edition.
"""

import argparse
import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.files import sha256_of, write_bytes, write_json
from fairseq_maelm.finetuning.prompting.tables import Example
from fairseq_maelm.prepared_folder import whole_folder

logger = logging.getLogger(__name__)

# In the order in which the authors' script makes the splits.
SEEDS = (100, 13, 21, 42, 87)
EXAMPLES_PER_LABEL = 16

# Scores of STS-B below this are one group and the others the second; half of the scale of 0 to 5.
STS_B_MEDIAN = 2.5

# Of a task and a seed those of the training and of the development set; of a task and a test set its own.
SUMS = {
    tuple(line.split()[:2]): tuple(line.split()[2:])
    for line in """
CoLA 100 c02bce246a4481b2733522d82200d81e fda65a964d3ebeec632f8c45fac8209e
CoLA 13 8b3b16bdc7ccdf7c5e0397caf1ce61c1 2a3b6875b91447043e5fc7366d6d6c59
CoLA 21 9af338ce1d82a300b1d09e06da913454 ad4bd1c5d1bbc9cb149cc10648ade05f
CoLA 42 35870db90cf9b4044159d49cf4c4a620 6f2b371c0fa209c253d49e20941d44c5
CoLA 87 f0260a425124e254cef6c41e78c3b990 30975efe3642c02d2afaf6fa6849b5b1
SST-2 100 f5079b5b5bd27087a7d836e7e8faedc7 1d65f0f67026bbdcbfef6ed3ada2510a
SST-2 13 fe166f3b9e9952cb729a8d2c3bd682ae 0eeeb2195d82899d15ab5eeaddcaa944
SST-2 21 6661938fcefe356e8c9c3f866b67c047 74a12c79dea73deb5526c398b1bc7bc0
SST-2 42 edce4c52734c2084476ac03bfdfa5c77 4ba7f2ffe0fc89844d1184f294f15774
SST-2 87 783b9e625ec6dea210cc4062d464aba2 2972df0d5eace29b48eb8ce77770c3d5
MRPC 100 29d9a7598589c1636f64c7cf3dd25de8 f65a7cbec81d738f594db0040fb32610
MRPC 13 4ee5a1591a6b385ed235dff1fe0bc2ff 55da0a2ef25c0bdda9ba0bbe1a757644
MRPC 21 17f3132a74d23a122c8e8bc6936de492 2f0e716c6a5ddaf45d03d0b48075fd5a
MRPC 42 f96a9434f7cdef032f544f405498c266 a2a9648bec87318674338caed2538091
MRPC 87 cad49c8459f1eef52093b9527ec87735 b9664f662b04ec18feb8605462a8a1cb
QQP 100 b6a7ea69840e305608faabd068a74f06 136f4a247a897a80285a1e215a850d0a
QQP 13 89173509ae29f234632fe2e7805860ba 14a3c59ae8a5298372923dadc3c86012
QQP 21 ce7ed8d40a8e0c090b8c4634914ef895 c29687f39ece2c692efca3ade0b91912
QQP 42 88f2cc2d8a4c7b691099a47794ce2aee c1b2198ba8a84976bb1084c164418234
QQP 87 7110878494e561015e94fe459115c92c cb7a47bad6671d75a93ec2db13c7964a
STS-B 100 5f8d5211ff72f49ebf181b63e6390449 d826c4b3fa6d419aed50442b7f1f6adc
STS-B 13 634047695a8036cfe2523cbbc58f2fbb f17c612f0da73b1599a9946b1e8c7d06
STS-B 21 af75494229a00b1ea764e7e38a3fbcf8 a79b76d7ee8efcb7cdefb4056b0606b8
STS-B 42 c4577d13b90f33d9a61ca7abb8126132 08b70fdb9484181f9331409329cd2259
STS-B 87 c1a41f8d2a0867802920e447b4e6e73b 430153037049cab16d6141e766b4cca2
MNLI 100 288a569addee0a37675ba0d27bb5cf9a 2139f9ecc2aabf761ca904a7ecfa2652
MNLI 13 6c61998bef38ccadacc2df0013035715 5e84a205fcb8c20d8706df7e5cc7c03f
MNLI 21 139ce8bcc9b973b164fe2065a507819a 5da136973f2ccb8c3cd421c74cf343e8
MNLI 42 5adecf01452cdd271940d5d7f094c77e c51ee1e3afccc39cd4f4fd660f6b547f
MNLI 87 c2540989877d39d56aa34f503bf8d145 f53efd36c22ed01af9b61ee6f917a714
QNLI 100 85c42afc824ac7a0474ccc42239f664c 9f193ffb9e102d28a25524f9a778b819
QNLI 13 4fd9e83941409d616f67a4fb6e68206b a54657913dd71710bb0eff9b8c044746
QNLI 21 f316c511c6990c2648b821b99351f185 f7dd6b59f755d86a00395d2ee7fc4938
QNLI 42 edbea1a802d48db725c61d487597ab60 e0d03f6166b24a8c16985e32a8315427
QNLI 87 2bcc47b08f67553f5e9f45991af07d10 2b7f1fc57c802433c59357f659888a08
RTE 100 548d8775d98ca0638615b9e0bfbe5c32 bc66584b1fa19f9620051e8db7bcc1dc
RTE 13 0aaae3483435626089adbc4ae851b75d 8fc45ab58e72e16cf90547710f3b5d15
RTE 21 79490f931a776fad7f3b2ba31f9142d1 96ac052f30101901e6bc04adb4875edb
RTE 42 4d45391333d2f56d16633d7b85d3e051 a64069d0ca424995d35e05e67c03ceb9
RTE 87 46af88a12bc44c12a40ea2cb79e94837 19ee5593b53d1b290737eb9de2ca4869
CoLA test.tsv c5475ccefc9e7ca0917294b8bbda783c
SST-2 test.tsv aeac355ccdb43bc747e816eff2d74aa4
MRPC test.tsv 185958e46ba556b38c6a7cc63f3a2135
QQP test.tsv cff6a448d1580132367c22fc449ec214
STS-B test.tsv 5f4d6b0d2a5f268b1b56db773ab2f1fe
MNLI test_matched.tsv c3fa2817007f4cdf1a03663611a8ad23
MNLI test_mismatched.tsv b219e6fe74e4aa779e2f417ffe713053
QNLI test.tsv 1e81e211959605f144ba6c0ad7dc948b
RTE test.tsv 973cb4178d4534cf745a01c309d4a66c
""".strip().splitlines()
}


class Columns(NamedTuple):
    """The columns of a GLUE file, from 0, as the code of Gao et al. reads them.

    Attributes:
        header: whether the first line names the columns.
        sentences: columns of the sentences.
        label: column of the label; -1 is the last.
    """

    header: bool
    sentences: tuple[int, ...]
    label: int


GLUE_COLUMNS = {
    "CoLA": Columns(False, (3,), 1),
    "SST-2": Columns(True, (0,), 1),
    "MRPC": Columns(True, (3, 4), 0),
    "QQP": Columns(True, (3, 4), 5),
    "STS-B": Columns(True, (7, 8), -1),
    "MNLI": Columns(True, (8, 9), -1),
    "QNLI": Columns(True, (1, 2), -1),
    "RTE": Columns(True, (1, 2), -1),
}


class FewShotSplit(NamedTuple):
    """A split, as lines of the task's own file without its header.

    Attributes:
        train: K lines of each label, labels in the order of their first appearance in the shuffled file.
        dev: the next K of each.
    """

    train: list[str]
    dev: list[str]


def group_of(task: str, line: str) -> str:
    """Return the label by which lines are sampled; for STS-B which half of the scale the score lies in.

    Raises:
        ValueError: if the line has no such column, or the score is no number.
    """
    cells = line.strip().split("\t")
    try:
        if task == "STS-B":
            return str(int(float(cells[-1]) >= STS_B_MEDIAN))
        return cells[{"CoLA": 1, "MRPC": 0}.get(task, -1)]
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
    """Return the MD5 of a file of these lines, in hexadecimal digits; for comparison, not for security."""
    return hashlib.md5("".join(lines).encode("utf-8"), usedforsecurity=False).hexdigest()


def known_sums(task: str, seed: int, per_label: int) -> Sequence[str | None]:
    """Return MD5 sums of the authors' training and development set; None where they have no such split."""
    unknown = (None, None)
    return SUMS.get((task, str(seed)), unknown) if per_label == EXAMPLES_PER_LABEL else unknown


def read_glue_file(task: str, path: Path) -> tuple[list[str], list[str]]:
    """Read a file's header, an empty list for CoLA, and its lines.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        # Like the authors' script with any kind of line end, which decides what a line is.
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from error
    first = int(GLUE_COLUMNS[task].header)
    return lines[:first], lines[first:]


def table_line(example: Example) -> str:
    """Return an example as a line of a table; white space inside a sentence becomes single spaces."""
    return "\t".join([*(" ".join(sentence.split()) for sentence in example.sentences), example.label or ""]) + "\n"


def glue_examples(task: str, lines: Iterable[str], place: str) -> Iterator[Example]:
    """Yield the examples of a GLUE file's lines, its header left out.

    Lines of QQP that lack columns are left out with a warning, as the code of Gao et al. does.

    Args:
        task: a key of ``GLUE_COLUMNS``.
        lines: of the file.
        place: its name, for messages.

    Raises:
        ValueError: if a line of another task lacks columns.
    """
    columns = GLUE_COLUMNS[task]
    needed = 1 + max(*columns.sentences, columns.label)
    for number, line in enumerate(lines, 1 + columns.header):
        cells = line.rstrip("\n").split("\t")
        if len(cells) < needed:
            message = f"{place}, line {number} has {len(cells)} columns, and {task} has {needed} at least"
            if task != "QQP":
                raise ValueError(message)
            logger.warning("%s: left out", message)
            continue
        yield Example(tuple(cells[column] for column in columns.sentences), cells[columns.label].strip())


def write_task(task: str, source: Path, output: Path, per_label: int, seeds: list[int]) -> dict[str, dict[str, Any]]:
    """Write a task's splits, as GLUE files and as tables; return what is known of each GLUE file."""
    header, lines = read_glue_file(task, source / "train.tsv")
    suffixes = ("_matched", "_mismatched") if task == "MNLI" else ("",)
    tests = {f"test{suffix}.tsv": read_glue_file(task, source / f"dev{suffix}.tsv") for suffix in suffixes}
    facts: dict[str, dict[str, Any]] = {}
    for test, (_, content) in tests.items():
        write_table(task, content, output / "tables" / task / test, str(source / test))
    for seed, split in few_shot_splits(task, lines, per_label, seeds):
        name = f"{task}/{per_label}-{seed}"
        train_sum, dev_sum = known_sums(task, seed, per_label)
        files: dict[str, tuple[list[str], str | None]] = {
            "train.tsv": ([*header, *split.train], train_sum),
            f"dev{suffixes[0]}.tsv": ([*header, *split.dev], dev_sum),
            **{test: ([*own, *content], SUMS[task, test][0]) for test, (own, content) in tests.items()},
        }
        for file, (content, md5) in files.items():
            facts[f"{name}/{file}"] = write_glue(content, output / "k-shot" / name / file, md5)
        for table, part in (("train", split.train), ("valid", split.dev)):
            write_table(task, part, output / "tables" / name / f"{table}.tsv", f"the {table} set of {name}")
    return facts


def write_glue(lines: list[str], path: Path, known: str | None) -> dict[str, Any]:
    """Write a GLUE file; return its sums and whether it is the authors', None where theirs is not known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode("utf-8"))
    # The authors' copies lack some of the last lines' ends, which are no part of an example.
    without_end = [*lines[:-1], lines[-1].rstrip("\n")]
    equal = None if known is None else known in (md5_of(lines), md5_of(without_end))
    return {"sha256": sha256_of(path), "md5": md5_of(lines), "equals_gao_et_al": equal}


def write_table(task: str, lines: list[str], path: Path, place: str) -> None:
    """Write lines of a GLUE file as a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(table_line(example) for example in glue_examples(task, lines, place))
    write_bytes(path, content.encode("utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the splits and print how many equal the authors'.

    Raises:
        ValueError: an argument or a file is not as it must be, or sums differ and may not.
        OSError: a file is missing or cannot be written.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("glue", type=Path, metavar="GLUE", help="folder with CoLA/train.tsv, CoLA/dev.tsv and so on")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument("--tasks", nargs="+", choices=GLUE_COLUMNS, metavar="TASK", help="(all that GLUE holds)")
    parser.add_argument(
        "--examples-per-label", type=int, default=EXAMPLES_PER_LABEL, metavar="K", help=f"({EXAMPLES_PER_LABEL})"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED", help=f"{SEEDS}")
    parser.add_argument(
        "--require-checksums",
        action="store_true",
        help="stop when a split differs from the authors', instead of saying so",
    )
    args = parser.parse_args(arguments)
    if args.examples_per_label < 1:
        raise ValueError(f"--examples-per-label must be positive and is {args.examples_per_label}")
    tasks = args.tasks or [task for task in GLUE_COLUMNS if (args.glue / task / "train.tsv").exists()]
    if not tasks:
        raise ValueError(f"there is no task's train.tsv in {args.glue}: give the folder that holds CoLA, SST-2, ...")
    with whole_folder(args.output, "few_shot_splits.py") as folder:
        facts: dict[str, dict[str, Any]] = {}
        for task in tqdm(tasks, unit=" tasks"):
            facts.update(write_task(task, args.glue / task, folder, args.examples_per_label, args.seeds))
        differing = [name for name, fact in facts.items() if fact["equals_gao_et_al"] is False]
        if differing and args.require_checksums:
            raise ValueError(f"these differ from the splits of Gao et al.: {', '.join(differing)}")
        write_json(folder / "manifest.json", {"examples_per_label": args.examples_per_label, "files": facts})
    for task in sorted({name.split("/")[0] for name in differing}):
        logger.warning("the files of %s differ from those of Gao et al.: theirs were another edition of GLUE", task)
    known = sum(fact["equals_gao_et_al"] is not None for fact in facts.values())
    print(
        f"{len(facts)} files in {args.output}; {known - len(differing)} of the {known} whose sums are known equal "
        "those of Gao et al."
    )


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"few_shot_splits.py: error: {error}") from error
