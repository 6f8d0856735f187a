#!/usr/bin/env python3
"""Adapt a pretrained encoder to a domain's text, fine-tune it on the domain's tasks before and after, and compare.

What has succeeded is not done again: the same command goes on after an interruption.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# What programs of the examples share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study
from study import last_json, masking_options, model_options
from tables import SPLITS, score_of_table, tasks_in, write_columns, write_results, write_table

from fairseq_maelm.arguments import CommandParser, number
from fairseq_maelm.files import sha256_of
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.sweep.jobs import Job, Process, read_json, visible
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import data_fingerprint, study_folder

# What decides the results besides files and tasks: option -> type, default, help.
SETTINGS: dict[str, tuple[Any, Any, str]] = {
    "seeds": (number(int, 1), 5, "fine-tunings of each task and encoder"),
    "updates": (number(int, 1), 2000, "the most updates of pretraining"),
    "interval": (number(int, 1), 100, "updates between validations"),
    "patience": (number(int, 0), 5, "validations without a lower domain loss"),
    "batch-size": (number(int, 1), 128, "sequences of pretraining"),
    "learning-rate": (str, "5e-4", "peak rate of pretraining"),
    "general-ratio": (str, "0.25", "share of general text in pretraining"),
    "general-loss-bound": (str, "0.1", "bits that the general loss may rise"),
    "epochs": (number(int, 1), 5, "epochs of fine-tuning"),
    "finetuning-learning-rate": (str, "5e-5", "peak rate of fine-tuning; small encoders need 5e-4"),
    "train-examples": (number(int, 1), None, "the first examples of each task to train on (default: all)"),
    "test-examples": (number(int, 1), None, "the first examples to validate and to test on (default: all)"),
    "train-options": (str, "", "more options of fairseq-train for pretraining"),
}
# The kind of a task's files -> the score in its metrics, and its name in tables.
METRICS = {"jsonl": ("macro F1", "macro F1"), "conll": ("f1", "entity F1")}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="domain text and tasks")
    parser.add_argument("checkpoint", type=Path, help="pretrained checkpoint")
    parser.add_argument("data", type=Path, help="folder that it was trained on")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument("--tasks", nargs="+", help="some of the tasks (default: all)")
    parser.add_argument(
        "--control", action="store_true",
        help="also go on for as many updates with general text alone, and fine-tune that",
    )  # fmt: skip
    for name, (kind, default, text) in SETTINGS.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument("--remove-runs", action="store_true", help="keep scores and no checkpoints of fine-tuning")
    add_runner_arguments(parser)
    return parser


def domain_texts(folder: Path) -> dict[str, list[Path]]:
    """Name the files of the domain's text: split -> files."""
    return {split: sorted(folder.glob(f"*_{split}.txt")) for split in ("train", "valid")}


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


def settings_of(args: argparse.Namespace, tasks: dict[str, str]) -> dict[str, Any]:
    """Return the settings that determine the results; later commands in the same folder must have the same."""
    return {
        "checkpoint": sha256_of(args.checkpoint),
        "data": data_fingerprint(args.data),
        "domain": {path.name: path.stat().st_size for paths in domain_texts(args.folder).values() for path in paths},
        "tasks": {
            name: {split: sha256_of(args.folder / name / f"{split}.{kind}") for split in SPLITS}
            for name, kind in tasks.items()
        },
        **{name: getattr(args, name) for name in (option.replace("-", "_") for option in SETTINGS)},
    }


class Adaptation:
    """The programs of a study.

    Args:
        args: of the command line.
        tasks: name -> kind of its files, "jsonl" to classify sentences or "conll" to label words.
        gpus: of a program.
    """

    def __init__(self, args: argparse.Namespace, tasks: dict[str, str], gpus: int) -> None:
        self.args, self.tasks, self.gpus, self.output = args, tasks, gpus, args.output
        self.checkpoints = {"before": args.checkpoint, "after": self.output / "adapted" / "checkpoint_best.pt"}
        if args.control:
            self.checkpoints["control"] = self.output / "control" / "checkpoint_last.pt"

    def marker(self, name: str) -> Path:
        """Return the file that gets the result of a program; its log has the same folder."""
        # Not with_suffix: a task's name may have a dot.
        return self.output / "runs" / f"{name}.json"

    def preparation(self) -> list[Job]:
        """Return the jobs that prepare the domain's text and the tasks, and continue pretraining."""
        texts, domain = domain_texts(self.args.folder), self.output / "domain"
        model = self.args.data / "sentencepiece.bpe.model"
        words = ["maelm", "prepare", "corpus", "--workers", 1, "--sentencepiece-model", model, *texts["train"]]
        text = Job(
            "domain's text", self.marker("domain"), _program([*words, "--output", domain, "--valid", *texts["valid"]])
        )
        general = ["--general-data", self.args.data, "--general-ratio", self.args.general_ratio, "--valid-subset"]
        general += ["valid,general", "--general-loss-bound", self.args.general_loss_bound]
        general += ["--patience", self.args.patience]
        adapted = Job(
            "continued pretraining",
            self.marker("adaptation"),
            lambda slot: self._pretraining("maelm_adaptation", domain, "adapted", self.args.updates, general, slot),
            self._adapted,
            resumes=True,
        )
        control = Job(
            "control on general text",
            self.marker("control"),
            lambda slot: self._pretraining("maelm", self.args.data, "control", self._updates(), [], slot),
            resumes=True,
        )
        text.followers, adapted.followers = [adapted], [control] if self.args.control else []
        return [text, *map(self._task, self.tasks)]

    def _pretraining(self, task: str, text: Path, name: str, updates: int, more: list[Any], slot: str) -> Process:
        args = self.args
        own = {
            "task": task, "finetune-from-model": args.checkpoint, "validate-interval-updates": args.interval,
            "save-interval-updates": args.interval, "keep-interval-updates": 1, "max-update": updates,
            "total-num-update": args.updates, "warmup-updates": args.updates // 10, "lr": args.learning_rate,
            "lr-scheduler": "polynomial_decay", "batch-size": args.batch_size, "log-interval": 20, "num-workers": 0,
            "cpu": not self.gpus, "save-interval": None, "validate-interval": None,
        }  # fmt: skip
        words = [*study.pretraining(text, self.output / name, own), *model_options(args.checkpoint)]
        words += [*masking_options(args.checkpoint), *args.train_options.split(), *map(str, more)]
        return Process(words, visible(slot))

    def _adapted(self, log: Path) -> dict[str, Any]:
        if not self.checkpoints["after"].exists():
            raise ValueError("the general loss was above its bound before anything could be saved")
        return {"updates": self._updates()}

    def _updates(self) -> int:
        """Of the adapted checkpoint; what it gains in as many of general text is what more training gains."""
        if not self.checkpoints["after"].exists():
            return int(self.args.updates)  # a dry run, or a folder that was tidied
        return int(read_checkpoint(self.checkpoints["after"]).state["optimizer_history"][-1]["num_updates"])

    def _task(self, name: str) -> Job:
        tables, folder, kind = self.output / "tables" / name, self.output / "tasks" / name, self.tasks[name]
        suffix = "tsv" if kind == "jsonl" else "conll"
        words = ["maelm", "prepare", "sentences" if kind == "jsonl" else "tagging", "--vocabulary"]
        files = ["--train", tables / f"train.{suffix}", "--valid", tables / f"dev.{suffix}"]
        process = _program([*words, self.args.data, *files, "--output", folder])
        return Job(f"task {name}", self.marker(f"prepare_{name}"), process, clears=[folder])

    def write_tables(self) -> None:
        """Write the tasks' files as the preparation reads them."""
        for name, kind in self.tasks.items():
            writer, suffix = (write_table, "tsv") if kind == "jsonl" else (write_columns, "conll")
            tables = self.output / "tables" / name
            tables.mkdir(parents=True, exist_ok=True)
            for split in SPLITS:
                number = self.args.train_examples if split == "train" else self.args.test_examples
                writer(self.args.folder / name / f"{split}.{kind}", tables / f"{split}.{suffix}", number)

    def runs(self) -> Iterator[tuple[str, str, int]]:
        """Yield task, encoder and seed of every fine-tuning."""
        for model in self.checkpoints:
            for name in self.tasks:
                for seed in range(1, self.args.seeds + 1):
                    yield name, model, seed

    def fine_tuning(self, name: str, model: str, seed: int) -> Job:
        """Return a fine-tuning, followed by its score on test data."""
        title, file = f"{name}, {model}, seed {seed}", f"{name}_{model}_{seed}"
        save_dir, task, tables = (self.output / place for place in (f"runs/{file}", f"tasks/{name}", f"tables/{name}"))
        own = {"lr": self.args.finetuning_learning_rate, "epochs": self.args.epochs, "batch-size": 16}
        own |= {"seed": seed, "gpus": self.gpus}
        # Without last checkpoints an interrupted fine-tuning begins again.
        more = ["--no-last-checkpoints"] if self.args.remove_runs else None
        training = _program(study.fine_tuning(task, self.checkpoints[model], save_dir, own, more))
        suffix = "conll" if self.tasks[name] == "conll" else "tsv"
        test, predicted = tables / f"test.{suffix}", self.output / "scores" / f"{file}.{suffix}"
        scoring = ["maelm", "predict", test, "--checkpoint", save_dir / "checkpoint_best.pt", "--output", predicted]

        def result(log: Path) -> dict[str, Any]:
            # `maelm predict` ends with the metrics of labeled words.
            return last_json(log) if suffix == "conll" else score_of_table(test, predicted)

        score = Job(
            f"{title}, test", self.output / "scores" / f"{file}.json",
            _program(scoring if suffix == "conll" else [*scoring, "--text", "0"]), result,
            ended=lambda: self._tidy(name, model, seed), clears=[predicted],
        )  # fmt: skip
        return Job(title, self.marker(file), training, resumes=not self.args.remove_runs, followers=[score])

    def _tidy(self, name: str, model: str, seed: int) -> None:
        if self.args.remove_runs and self.score(name, model, seed) is not None:
            shutil.rmtree(self.output / "runs" / f"{name}_{model}_{seed}", ignore_errors=True)

    def score(self, name: str, model: str, seed: int) -> float | None:
        """Return macro F1 of sentences or F1 of entities, in percent; None where there is no score yet."""
        found = read_json(self.output / "scores" / f"{name}_{model}_{seed}.json") or {}
        return found.get(METRICS[self.tasks[name]][0])

    def table(self) -> str:
        """Write results.csv and table.md, and return the table."""
        scores = {run: self.score(*run) or 0.0 for run in self.runs()}
        return write_results(scores, {name: METRICS[kind][1] for name, kind in self.tasks.items()}, self.output)


def _program(words: list[Any]) -> Any:
    return lambda slot: Process(list(map(str, words)), visible(slot))


def main(arguments: Sequence[str]) -> None:
    """Read the command line, do it, and show the table."""
    args = make_parser().parse_args(arguments)
    with sitting("adapt.py"):
        runner: Runner = runner_of(args)
        tasks = check(args)
        adaptation = Adaptation(args, tasks, runner.gpus)
        if runner.dry_run:
            runner.do([*adaptation.preparation(), *(adaptation.fine_tuning(*run) for run in adaptation.runs())])
            return
        with study_folder(args.output, settings_of(args, tasks)):
            adaptation.write_tables()
            runner.do(adaptation.preparation())
            runner.do([adaptation.fine_tuning(*run) for run in adaptation.runs()])
            print(adaptation.table(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
