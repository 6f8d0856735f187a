#!/usr/bin/env python3
"""Pretrain by several methods with equal compute, fine-tune and probe the encoders, and write one page about it.

Each stage can be run by itself, and takes up what an interruption left.
"""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# First, because it finds the package.
from plan import DEFAULT, RANDOM, Plan, Pretraining, folder_name  # isort: skip
import page
import study
import summary
from records import PRETRAINING, Records, measured, predicted, pretrained
from words import take_words

from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.launch.machine import add_precision, machine_of
from fairseq_maelm.options import CommandParser, existing_path, named
from fairseq_maelm.sweep.folder import sweep_folder
from fairseq_maelm.sweep.programs import Program, add_runner_arguments, is_finished, runner_of, sitting

STAGES = ("prepare", "choose", "pretrain", "evaluate", "page")


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    stages = f"stages to run, of: {', '.join(STAGES)} (default: all)"
    records = "file with results, which are not computed again (default: records.jsonl in the output folder)"
    text = "text that the plan names: a file, or a folder of .txt files; the stage prepare needs each of them"
    files = "folder with the data of the tasks that the plan names (default: the current one)"
    add = parser.add_argument
    add("stages", nargs="*", metavar="STAGE", default=STAGES, help=stages)
    add("--output", required=True, type=Path, metavar="FOLDER", help="folder of the study")
    add("--plan", type=existing_path, default=DEFAULT, metavar="FILE", help="what differs from plan.yaml")
    add("--records", type=Path, metavar="FILE", help=records)
    add("--text", action="append", type=named, default=[], metavar="NAME=PATH", help=text)
    add("--files", default=Path(), type=existing_path, metavar="FOLDER", help=files)
    add("--scale", default="cpu", help="scale that the plan declares")
    add("--budgets", nargs="+", metavar="FLOP", help="some of the plan's budgets (default: all)")
    add_precision(parser)
    add_runner_arguments(parser)
    return parser


class Study:
    """The output folder of a study. Each stage is a method, which skips what is already done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.plan, self.texts = Plan(args.plan, args.scale, args.budgets), dict(args.text)
        self.output, self.files = args.output.resolve(), args.files.resolve()
        self.data, self.runs = self.output / "data", self.output / "runs"
        self.runner = runner_of(args)
        self.machine = machine_of(self.runner.gpus, args.precision)
        self.records = Records(args.records or self.output / "records.jsonl", self.runs)
        # What is known of a pretraining; a dry run writes nothing.
        self.recorded = self.records.read if args.dry_run else self.records.update
        self.failed: dict[str, str] = {}
        for name in set(args.stages) - set(STAGES):
            raise ValueError(f"there is no stage {name}: give one of {', '.join(STAGES)}")

    # Stages

    def prepare(self) -> None:
        """Take the words, then make the corpus and the tasks with its vocabulary."""
        wanted, folder = self.plan.content["words"], self.output / "text"
        for name in set(wanted) - set(self.texts):
            raise ValueError(f"the stage prepare needs --text {name}=PATH")
        if not self.runner.dry_run and not (self.output / "words.json").exists():
            folder.mkdir(exist_ok=True)
            for name, words in wanted.items():
                take_words(Path(self.texts[name]), words, folder / f"{name}.txt")
            write_json(self.output / "words.json", wanted)
        corpus = ["maelm", "prepare", "corpus", *(folder / f"{name}.txt" for name in wanted), "--output", self.data]
        self.runner.do([self.program("corpus", [*corpus, *words_of(self.plan.content["corpus"])], resumes=True)])
        self.runner.do([self.program(f"tasks/{name}", self.preparation(name)) for name in self.plan.tasks])
        if not self.runner.dry_run:
            tokens = read_json(self.data / "manifest.json")["counts"]["train"]["tokens"]
            symbols = (self.data / "dict.txt").read_bytes().count(b"\n") + 5
            self.records.add_to_study(vocabulary=symbols, tokens=tokens)

    def choose(self) -> None:
        """Choose settings for each method, one choice after the other."""
        chosen: dict[str, dict[str, str]] = {method: {} for method in self.plan.methods}
        for choice, settings in self.plan.choices.items():
            trials = {method: list(self.plan.trials(method, choice, own)) for method, own in chosen.items()}
            todo = [run for runs in trials.values() for run in runs if not self.recorded(run)]
            self.runner.do([self.pretraining(run) for run in todo])
            if self.runner.dry_run:
                return
            for method, runs in trials.items():
                losses = [self.recorded(run)[PRETRAINING]["loss"] for run in runs]
                chosen[method][choice] = list(settings)[losses.index(min(losses))]
        self.records.add_to_study(chosen=chosen)

    def pretrain(self) -> None:
        """Do the pretrainings of which not all is recorded."""
        todo = [run for run in self.reported() if self.missing(run) or not self.recorded(run)]
        self.failed |= self.runner.run([self.pretraining(run) for run in todo])

    def evaluate(self) -> None:
        """Measure and fine-tune every encoder."""
        programs = []
        for run in self.reported():
            missing = self.missing(run)
            if not missing or self.runner.dry_run or is_finished(self.runs / run.name / "result.json"):
                for name, own in missing.items():
                    programs.append((self.fine_tuning if "task" in own else self.measurement)(run, name, own))
            elif run.name not in self.failed:
                raise ValueError(f"{run.name} is not pretrained here: run the stage pretrain first")
        self.failed |= self.runner.run(programs)

    def page(self) -> None:
        """Write results.json, results.md, page.html and the figures."""
        if not self.runner.dry_run:
            runs = self.reported()
            for run in runs:
                self.records.update(run)
            page.write(self.plan, summary.collect(self.plan, runs, self.records), self.output)

    def reported(self) -> list[Pretraining]:
        """Return the pretrainings that are reported, of the budgets asked for."""
        return list(self.plan.pretrainings(self.records.about("chosen", "choose")))

    def missing(self, run: Pretraining) -> dict[str, dict[str, Any]]:
        """Return the measurements and fine-tunings that are not recorded, by the names of their folders."""
        known, vocabulary = self.recorded(run), self.records.about("vocabulary", "prepare")
        return {name: own for name, own in self.plan.evaluations(run, vocabulary).items() if name not in known}

    # Programs

    def program(self, place: str, words: Sequence[Any], run: Pretraining | None = None, **more: Any) -> Program:
        """Return a program with its result in a folder below the output; that of a pretraining is recorded."""

        def ended() -> None:
            if run is not None:
                self.records.update(run)

        return Program(place, self.runs / place / "result.json", [*map(str, words)], ended=ended, **more)

    def preparation(self, task: str) -> list[Any]:
        """Return the command that prepares a task."""
        own, folder = self.plan.tasks[task], self.prepared(task)
        if own["kind"] == "glue":
            words = [self.files / "glue", "--tasks", task, "--output", folder.parent]
            if "train" in own:
                words += ["--train-file", f"{task}={self.files / own['train']}", "--accept-counts"]
        else:
            words = ["--train", self.files / own["train"], "--valid", self.files / own["valid"], "--output", folder]
        if own["kind"] in ("glue", "sentences"):
            words += ["--max-length", self.plan.content["common"]["max-positions"]]
        return ["maelm", "prepare", own["kind"], *words, "--vocabulary", self.data]

    def prepared(self, task: str) -> Path:
        """Return the folder of a prepared task."""
        own = task if self.plan.tasks[task]["kind"] == "glue" else "task"
        return self.output / "tasks" / folder_name(task) / own

    def pretraining(self, run: Pretraining) -> Program:
        """Return a pretraining, which reads the text as often as the plan allows at the most."""
        vocabulary = self.records.about("vocabulary", "prepare")
        updates = run.updates(vocabulary)
        tokens = updates * run.options["max-tokens"]
        passes = tokens / self.records.about("tokens", "prepare")
        if passes > self.plan.content["most-passes"]:
            raise ValueError(f"{run.name} would read the text {passes:.1f} times: give more text or a larger model")
        kept = self.plan.updates_at(run, vocabulary).get("part_1")
        own = {**run.options, "seed": run.seed, "max-tokens-valid": 8192, "keep-interval-updates-pattern": kept}
        to = self.data, self.runs / run.name
        words = study.pretraining(*to, own, updates, self.plan.interval(updates), self.machine, run.row != RANDOM)
        return self.program(run.name, words, run, result=pretrained, resumes=True)

    def checkpoint(self, run: Pretraining, updates: int | None = None) -> Path:
        """Return the checkpoint of a pretraining after so many updates, by default the last one."""
        # The number of the epoch is part of the name.
        found = sorted((self.runs / run.name).glob(f"checkpoint_*_{updates}.pt"))
        return found[-1] if found else self.runs / run.name / f"checkpoint_{updates or 'last'}.pt"

    def measurement(self, run: Pretraining, name: str, own: dict[str, Any]) -> Program:
        """Return a measurement of an encoder."""
        place, output = f"{run.name}/{name}", self.runs / run.name / name / "files"
        model, precision = self.checkpoint(run), ["--precision", self.machine.precision]
        if own["command"] == "score":
            texts, first = self.files / own["sentences"], ["--first", own["first"]]
            words = [texts, *first, "--checkpoint", model, *precision, "--json"]
        else:
            words = ["--checkpoint", f"model={model}", "--data", self.data, "--tokens", own["tokens"]]
            words += ["--conditions", "whole", "masked"]
        words = ["maelm", own["command"], *words, "--output", output]
        return self.program(place, words, run, result=lambda log: measured(own, log, output), resumes=True)

    def fine_tuning(self, run: Pretraining, name: str, own: dict[str, Any]) -> Program:
        """Return a fine-tuning with its predictions, after which the fine-tuned model is deleted."""
        folder, task, prepared = self.runs / run.name / name, self.plan.tasks[own["task"]], self.prepared(own["task"])
        model, predictions, metrics = folder / "model", folder / "predictions.tsv", folder / "metrics.json"
        if not prepared.exists() and not self.runner.dry_run:
            raise ValueError(f"there is no {prepared}: run the stage prepare first")
        options = {**own["options"], "gpus": min(1, self.machine.gpus), "precision": self.machine.precision}
        train = ["maelm", "finetune", prepared, "--checkpoint", self.checkpoint(run, own["updates"]), "--verbose"]
        train += ["--output", model, *words_of(options), "--", "--no-epoch-checkpoints", "--disable-validation"]
        # Tags and answers are scored on the original files.
        source = self.files / task["valid"] if task["kind"] in ("squad", "tagging") else prepared
        predict = ["maelm", "predict", source, "--checkpoint", model / "checkpoint_last.pt", "--output", predictions]
        predict += ["--metrics", metrics]
        commands = [train, ["rm", "-f", predictions, metrics], predict, ["rm", "-r", model]]
        script = " && ".join(shlex.join(map(str, words)) for words in commands)
        # Paired tests need to know which examples the final checkpoints predict.
        labels = self.files / task["valid"] if task["kind"] == "sentences" and own["updates"] is None else None
        words, place = ["sh", "-c", script], f"{run.name}/{name}"
        return self.program(place, words, run, result=lambda log: predicted(metrics, predictions, labels), resumes=True)


def main(arguments: Sequence[str]) -> None:
    """Run the stages; stopped or refused, say so in a line."""
    args = make_parser().parse_args(arguments)
    with sitting("evidence.py"):
        own = Study(args)
        settings = {**own.plan.settings(), "precision": own.machine.precision}
        with contextlib.nullcontext() if args.dry_run else sweep_folder(own.output, settings):
            for name in [name for name in STAGES if name in args.stages]:
                try:
                    getattr(own, name)()
                except ValueError as error:
                    if not args.dry_run:
                        raise
                    print(f"# the commands of {name} are not known yet: {error}")
        own.runner.refuse(own.failed)


if __name__ == "__main__":
    main(sys.argv[1:])
