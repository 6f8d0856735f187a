#!/usr/bin/env python3
"""Adapt a pretrained encoder to a domain's text, fine-tune it on the domain's tasks before and after, and compare.

What has succeeded is not done again: the same command goes on after an interruption.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What programs of the examples share; the package is found beside them when it is not installed.
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from checkpoint_options import masking_options, model_options  # noqa: E402
from tables import SPLITS, tasks_in, write_columns, write_results, write_table  # noqa: E402

from fairseq_maelm.arguments import number  # noqa: E402
from fairseq_maelm.files import sha256_of  # noqa: E402
from fairseq_maelm.models.checkpoint_reader import read_checkpoint  # noqa: E402
from fairseq_maelm.sweep.jobs import Job, Process, read_json, visible  # noqa: E402
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting  # noqa: E402
from fairseq_maelm.sweep.store import data_fingerprint, study_folder  # noqa: E402

# Arguments that decide what comes out, besides files, tasks and seeds.
OWN_SETTINGS = ("updates", "interval", "patience", "batch_size", "learning_rate", "general_ratio", "general_loss_bound",
                "epochs", "finetuning_learning_rate", "train_examples", "test_examples", "train_options")  # fmt: skip
# The kind of a task's files -> the score in its metrics, and its name in tables.
METRICS = {"jsonl": ("macro F1", "macro F1"), "conll": ("f1", "entity F1")}


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="domain text and tasks")
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("data", type=Path, help="folder that it was trained on")
    parser.add_argument("output", type=Path)
    parser.add_argument("--tasks", nargs="+", help="some of the tasks (all)")
    parser.add_argument("--seeds", type=number(int, 1), default=5)
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
    parser.add_argument("--train-options", default="", help="more options of fairseq-train for pretraining")
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
    """What decides the results; another command in the same folder must agree with it."""
    return {
        "checkpoint": sha256_of(args.checkpoint),
        "data": data_fingerprint(args.data),
        "texts": {path.name: path.stat().st_size for paths in domain_texts(args.folder).values() for path in paths},
        "tasks": {
            name: {split: sha256_of(args.folder / name / f"{split}.{kind}") for split in SPLITS}
            for name, kind in tasks.items()
        },
        "seeds": args.seeds,
        **{name: getattr(args, name) for name in OWN_SETTINGS},
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
        """Where the result of a program stands; its log is beside it."""
        # Not with_suffix: a task's name may have a dot.
        return self.output / "runs" / f"{name}.json"

    def preparation(self) -> list[Job]:
        """The domain's text and the pretraining that goes on with it, and the tasks."""
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
        words = [
            *["fairseq-train", text, "--user-dir", ROOT / "fairseq_maelm", "--task", task, "--criterion", "maelm"],
            *["--save-dir", self.output / name, "--finetune-from-model", args.checkpoint],
            *[*model_options(args.checkpoint), *masking_options(args.checkpoint)],
            *["--validate-interval-updates", args.interval, "--save-interval-updates", args.interval],
            *["--keep-interval-updates", 1, "--no-epoch-checkpoints", "--max-update", updates],
            *["--total-num-update", args.updates, "--warmup-updates", args.updates // 10, "--lr", args.learning_rate],
            *["--lr-scheduler", "polynomial_decay", "--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)"],
            *["--adam-eps", "1e-6", "--weight-decay", 0.01, "--clip-norm", 2.0, "--batch-size", args.batch_size],
            *["--log-format", "json", "--log-interval", 20, "--num-workers", 0, *([] if self.gpus else ["--cpu"])],
            *[*args.train_options.split(), *more],
        ]
        return Process(list(map(str, words)), visible(slot))

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
        """A fine-tuning, followed by its score on test data."""
        title, file = f"{name}, {model}, seed {seed}", f"{name}_{model}_{seed}"
        save_dir, task = self.output / "runs" / file, self.output / "tasks" / name
        metrics, tagged = save_dir / "metrics.json", self.output / "scores" / f"{file}.conll"
        words = ["maelm", "finetune", task, "--checkpoint", self.checkpoints[model], "--output", save_dir]
        words += ["--lr", self.args.finetuning_learning_rate, "--epochs", self.args.epochs, "--batch-size", 16]
        words += ["--seed", seed, "--gpus", self.gpus]
        # Without last checkpoints an interrupted fine-tuning begins anew.
        training = _program([*words, *(["--", "--no-last-checkpoints"] if self.args.remove_runs else [])])
        best, tables = save_dir / "checkpoint_best.pt", self.output / "tables" / name
        scoring: list[Any] = ["python", Path(__file__).with_name("score_sentences.py"), best, task]
        scoring += [tables / "test.tsv", metrics]
        has_words = self.tasks[name] == "conll"
        if has_words:
            scoring = ["maelm", "predict", tables / "test.conll", "--checkpoint", best, "--output", tagged]
        score = Job(
            f"{title}, test", self.output / "scores" / f"{file}.json", _program(scoring),
            # `maelm predict` ends with its metrics.
            lambda log: json.loads(log.read_text().splitlines()[-1]) if has_words else read_json(metrics) or {},
            ended=lambda: self._tidy(name, model, seed), clears=[tagged],
        )  # fmt: skip
        return Job(title, self.marker(file), training, resumes=not self.args.remove_runs, followers=[score])

    def _tidy(self, name: str, model: str, seed: int) -> None:
        if self.args.remove_runs and self.score(name, model, seed) is not None:
            shutil.rmtree(self.output / "runs" / f"{name}_{model}_{seed}", ignore_errors=True)

    def score(self, name: str, model: str, seed: int) -> float | None:
        """Percent, macro F1 of sentences or F1 of entities; None where there is no score yet."""
        found = read_json(self.output / "scores" / f"{name}_{model}_{seed}.json") or {}
        return found.get(METRICS[self.tasks[name]][0])

    def table(self) -> str:
        """Write results.csv and table.md; returns the table."""
        scores = {run: self.score(*run) or 0.0 for run in self.runs()}
        return write_results(scores, {name: METRICS[kind][1] for name, kind in self.tasks.items()}, self.output)


def _program(words: list[Any]) -> Any:
    return lambda slot: Process(list(map(str, words)), visible(slot))


def main() -> None:
    """Read the command line, do it, and show the table."""
    args = make_parser().parse_args()
    with sitting("adapt.py"):
        runner: Runner = runner_of(args)
        tasks = check(args)
        study = Adaptation(args, tasks, runner.gpus)
        if runner.dry_run:
            runner.do([*study.preparation(), *(study.fine_tuning(*run) for run in study.runs())])
            return
        with study_folder(args.output, settings_of(args, tasks)):
            study.write_tables()
            runner.do(study.preparation())
            runner.do([study.fine_tuning(*run) for run in study.runs()])
            print(study.table(), end="")


if __name__ == "__main__":
    main()
