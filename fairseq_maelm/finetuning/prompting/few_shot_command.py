"""The sub-command ``maelm prepare-few-shot``."""

import argparse
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_maelm.files import sha256_of, write_bytes, write_json
from fairseq_maelm.finetuning.prompting.checksums import TESTS
from fairseq_maelm.finetuning.prompting.few_shot import (
    EXAMPLES_PER_LABEL,
    SEEDS,
    FewShotSplit,
    few_shot_splits,
    header_and_lines,
    known_sums,
    md5_of,
)
from fairseq_maelm.finetuning.prompting.tables import GLUE_COLUMNS, glue_examples, read_lines, table_line

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"

# GLUE's development file -> the test set that is made of it.
_TEST_FILES = {"dev.tsv": "test.tsv"}
_TEST_FILES_OF_MNLI = {"dev_matched.tsv": "test_matched.tsv", "dev_mismatched.tsv": "test_mismatched.tsv"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare-few-shot``."""
    parser.description = (
        "Makes the few-shot splits of Gao et al. (2021) from official GLUE folders: K examples of each label for "
        "training, K for development, GLUE's development set as test set; and compares their MD5 sums with the "
        "authors'."
    )
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


def run(args: argparse.Namespace) -> None:
    """Makes the splits and writes to standard output how many equal the authors'.

    Raises:
        ValueError: an argument or a file is not as it must be, or sums differ and may not.
        OSError: a file is missing or cannot be written.
    """
    if args.output.exists():
        raise ValueError(f"{args.output} exists already: name another folder, or remove it first")
    if args.examples_per_label < 1:
        raise ValueError(f"--examples-per-label must be positive and is {args.examples_per_label}")
    tasks = args.tasks or [task for task in GLUE_COLUMNS if (args.glue / task / "train.tsv").exists()]
    if not tasks:
        raise ValueError(f"there is no task's train.tsv in {args.glue}: give the folder that holds CoLA, SST-2, ...")
    partial = args.output.with_name(args.output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    facts: dict[str, dict[str, Any]] = {}
    for task in tqdm(tasks, unit=" tasks"):
        facts.update(_write_task(task, args.glue / task, partial, args.examples_per_label, args.seeds))
    differing = [name for name, fact in facts.items() if fact["equals_gao_et_al"] is False]
    if differing and args.require_checksums:
        raise ValueError(f"these differ from the splits of Gao et al.: {', '.join(differing)}")
    write_json(partial / MANIFEST, {"examples_per_label": args.examples_per_label, "files": facts})
    partial.replace(args.output)
    for task in sorted({name.split("/")[0] for name in differing}):
        logger.warning("the files of %s differ from those of Gao et al.: theirs were another edition of GLUE", task)
    known = sum(fact["equals_gao_et_al"] is not None for fact in facts.values())
    sys.stdout.write(
        f"{len(facts)} files in {args.output}; {known - len(differing)} of the {known} whose sums are known equal "
        "those of Gao et al.\n"
    )


def _write_task(task: str, source: Path, output: Path, per_label: int, seeds: list[int]) -> dict[str, dict[str, Any]]:
    """Writes a task's splits, as GLUE files and as tables; returns what is known of each GLUE file."""
    header, lines = header_and_lines(task, read_lines(source / "train.tsv"))
    test_files = _TEST_FILES_OF_MNLI if task == "MNLI" else _TEST_FILES
    tests = {test: read_lines(source / dev) for dev, test in test_files.items()}
    dev_name = next(iter(test_files))
    facts: dict[str, dict[str, Any]] = {}
    for test, content in tests.items():
        _write_table(task, header_and_lines(task, content)[1], output / "tables" / task / test, str(source / test))
    for seed, split in few_shot_splits(task, lines, per_label, seeds):
        name = f"{task}/{per_label}-{seed}"
        sums = known_sums(task, seed, per_label) or (None, None)
        files: dict[str, tuple[list[str], str | None]] = {
            "train.tsv": ([*header, *split.train], sums[0]),
            dev_name: ([*header, *split.dev], sums[1]),
            **{test: (content, TESTS[task][test]) for test, content in tests.items()},
        }
        for file, (content, md5) in files.items():
            facts[f"{name}/{file}"] = _write_glue(content, output / "k-shot" / name / file, md5)
        _write_split_tables(task, split, output / "tables" / name)
    return facts


def _write_glue(lines: list[str], path: Path, known: str | None) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode("utf-8"))
    # The authors' copies lack some of the last lines' ends, which are no part of an example.
    without_end = [*lines[:-1], lines[-1].rstrip("\n")]
    equal = None if known is None else known in (md5_of(lines), md5_of(without_end))
    return {"sha256": sha256_of(path), "md5": md5_of(lines), "equals_gao_et_al": equal}


def _write_split_tables(task: str, split: FewShotSplit, folder: Path) -> None:
    _write_table(task, split.train, folder / "train.tsv", f"the training set of {folder.name}")
    _write_table(task, split.dev, folder / "valid.tsv", f"the development set of {folder.name}")


def _write_table(task: str, lines: list[str], path: Path, place: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(table_line(example) for example in glue_examples(task, lines, place))
    write_bytes(path, content.encode("utf-8"))
