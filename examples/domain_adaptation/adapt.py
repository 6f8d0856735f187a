#!/usr/bin/env python3
"""Adapt a pretrained encoder to a domain's text, fine-tune it on the domain's tasks before and after, and compare.

Every step leaves a file; the same command after an interruption goes on behind the last one that is complete.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continued import adapt, go_on_with_general_text
from fine_tunings import MAELM, FineTuning
from steps import once, run
from tables import SPLITS, tasks_in, write_columns, write_results, write_table

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
# What programs of many runs share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from study import Study, sitting

from fairseq_maelm.files import sha256_of
from fairseq_maelm.sweep.jobs import run as run_jobs
from fairseq_maelm.sweep.jobs import unfinished
from fairseq_maelm.sweep.store import data_fingerprint

EXAMPLES = Path(__file__).resolve().parents[1]
# Arguments that decide what comes out, besides files, tasks and seeds.
OWN_SETTINGS = ("updates", "interval", "patience", "batch_size", "learning_rate", "general_ratio", "general_loss_bound",
                "epochs", "finetuning_learning_rate", "train_examples", "test_examples",
                "train_options")  # fmt: skip


def prepare_task(args: argparse.Namespace, name: str, kind: str, folder: Path) -> Path:
    """Write a task in the vocabulary of the checkpoint."""
    tables = args.output / "tables" / name
    writer, suffix = (write_table, "tsv") if kind == "jsonl" else (write_columns, "conll")

    def work() -> None:
        tables.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            number = args.train_examples if split == "train" else args.test_examples
            writer(args.folder / name / f"{split}.{kind}", tables / f"{split}.{suffix}", number)
        prepare = [*MAELM, "prepare-tagging"]
        if kind == "jsonl":
            prepare = [sys.executable, str(EXAMPLES / "finetuning" / "prepare_sentences.py")]
        files = ["--train", tables / f"train.{suffix}", "--valid", tables / f"dev.{suffix}"]
        run([*prepare, "--data", args.data, *files, "--output", folder], args.output / "logs" / f"prepare_{name}.log")

    return once(folder, f"preparing {name}", work)


def fine_tune(args: argparse.Namespace, runs: Sequence[FineTuning]) -> dict[tuple[str, str, int], float]:
    """Fine-tune and score what has no score yet; returns (task, "before", "after" or "control", seed) -> percent."""
    print(f"fine-tuning: {sum(each.score() is None for each in runs)} of {len(runs)} runs to do", flush=True)
    jobs = [each.job() for each in runs]
    run_jobs(jobs, args.gpus or [""] * args.jobs)
    failed = [job.name for job in unfinished(jobs)]
    if failed:
        raise ValueError(f"{len(failed)} runs have no result ({failed[0]}): logs are in {args.output}/runs and scores")
    return {(each.name, each.model, each.seed): each.score() or 0.0 for each in runs}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="domain text and tasks")
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("data", type=Path, help="folder that it was trained on")
    parser.add_argument("output", type=Path)
    parser.add_argument("--tasks", nargs="+", help="some of the tasks (all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2000, help="the most updates of pretraining (2000)")
    parser.add_argument("--interval", type=int, default=100, help="updates between validations (100)")
    parser.add_argument("--patience", type=int, default=5, help="validations without a lower domain loss (5)")
    parser.add_argument("--batch-size", type=int, default=128, help="sequences of pretraining (128)")
    parser.add_argument("--learning-rate", default="5e-4", help="of pretraining (5e-4)")
    parser.add_argument("--general-ratio", default="0.25", help="share of general text in pretraining (0.25)")
    parser.add_argument("--general-loss-bound", default="0.1", help="bits that the general loss may rise (0.1)")
    parser.add_argument(
        "--control", action="store_true",
        help="also go on for as many updates with general text alone, and fine-tune that",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=5, help="of fine-tuning (5)")
    parser.add_argument("--finetuning-learning-rate", default="5e-5", help="(5e-5; small encoders need 5e-4)")
    parser.add_argument("--train-examples", type=int, metavar="N", help="the first N examples of each task (all)")
    parser.add_argument("--test-examples", type=int, metavar="N", help="the first N to validate and to test (all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="fine-tunings side by side (1)")
    parser.add_argument(
        "--gpus", nargs="+", default=[], metavar="NUMBER",
        help="instead of --jobs, a fine-tuning on each of these GPUs at a time; 0 0 0 puts three on one",
    )  # fmt: skip
    parser.add_argument("--train-options", default="", help="more options of fairseq-train, such as =--cpu")
    parser.add_argument("--remove-runs", action="store_true", help="keep scores and no checkpoints of fine-tuning")
    args = parser.parse_args()
    if args.jobs < 1 or args.seeds < 1:
        parser.error("--jobs and --seeds must be at least 1")
    return args


def check(args: argparse.Namespace) -> dict[str, str]:
    """Refuse what cannot work; returns the tasks, name -> kind of its files."""
    for path in (args.checkpoint, args.data / "sentencepiece.bpe.model"):
        if not path.is_file():
            raise ValueError(f"there is no {path}")
    if not all(domain_texts(args.folder).values()):
        raise ValueError(f"{args.folder} needs *_train.txt and *_valid.txt with the domain's text")
    found = tasks_in(args.folder)
    unknown = [name for name in args.tasks or () if name not in found]
    if unknown:
        raise ValueError(f"the tasks in {args.folder} are {', '.join(found)}, not {', '.join(unknown)}")
    return {name: found[name] for name in args.tasks or found}


def domain_texts(folder: Path) -> dict[str, list[Path]]:
    """Name the files of the domain's text: split -> files."""
    return {split: sorted(folder.glob(f"*_{split}.txt")) for split in ("train", "valid")}


def settings_of(args: argparse.Namespace, tasks: dict[str, str]) -> dict[str, Any]:
    """What decides the results; another command in the same folder must agree with it."""
    files = [path for paths in domain_texts(args.folder).values() for path in paths]
    return {
        "checkpoint": sha256_of(args.checkpoint),
        "data": data_fingerprint(args.data),
        "texts": {path.name: path.stat().st_size for path in files},
        "tasks": {
            name: {split: sha256_of(args.folder / name / f"{split}.{kind}") for split in SPLITS}
            for name, kind in tasks.items()
        },
        "seeds": args.seeds,
        **{name: getattr(args, name) for name in OWN_SETTINGS},
    }


def prepare_text(args: argparse.Namespace) -> Path:
    """Encode the domain's text in the vocabulary of the checkpoint; returns its folder."""
    texts, domain = domain_texts(args.folder), args.output / "domain"
    command = [*MAELM, "prepare", "--workers", 1, "--sentencepiece-model", args.data / "sentencepiece.bpe.model"]
    command += [*texts["train"], "--output", domain, "--valid", *texts["valid"]]
    log = args.output / "logs" / "domain.log"
    once(domain / "train.idx", "preparing the domain's text", lambda: run(command, log))
    return domain


def compare(args: argparse.Namespace, tasks: dict[str, str]) -> str:
    """Do all steps that are not done yet; returns the table."""
    adapted = adapt(args, prepare_text(args), args.data, args.checkpoint)
    encoders = [("before", args.checkpoint), ("after", adapted)]
    if args.control:
        encoders.append(("control", go_on_with_general_text(args, adapted)))
    runs = []
    for model, checkpoint in encoders:
        for name, kind in tasks.items():
            task = prepare_task(args, name, kind, args.output / "tasks" / f"{name}_{model}")
            settings = (args.finetuning_learning_rate, args.epochs, args.remove_runs)
            runs += [
                FineTuning(args.output, name, kind, task, model, checkpoint, seed, *settings)
                for seed in range(1, args.seeds + 1)
            ]
    scores = fine_tune(args, runs)
    metrics = {name: "macro F1" if kind == "jsonl" else "entity F1" for name, kind in tasks.items()}
    return write_results(scores, metrics, args.output)


def main() -> None:
    """Read the command line, do it, and show the table."""
    args = arguments()
    with sitting("adapt.py"):
        tasks = check(args)
        with Study(args.output, settings_of(args, tasks)):
            print(compare(args, tasks), end="")


if __name__ == "__main__":
    main()
