#!/usr/bin/env python3
"""Pretrain by several methods with equal compute, fine-tune and probe the encoders, and write one page about it.

Each stage can be run by itself, and takes up what an interruption left.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# First, because it finds the package.
from plan import RANDOM, Plan, Pretraining  # isort: skip
import page
import summary
from programs import NotKnownYetError, Programs
from records import PRETRAINING, Records

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.options import CommandParser, existing_path, named
from fairseq_maelm.studies.engine import read_json
from fairseq_maelm.studies.folder import study_folder
from fairseq_maelm.studies.options import add_runner_arguments, runner_of, sitting
from fairseq_maelm.training.options import add_precision, machine_of, words_of

HERE = Path(__file__).resolve().parent
STAGES = ("prepare", "choose", "pretrain", "evaluate", "time", "page")
# Lines of a document in a text without blank lines.
DOCUMENT_LINES = 50


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="STAGE",
        default=STAGES,
        help=f"stages to run, of: {', '.join(STAGES)} (default: all)",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="folder of the study")
    parser.add_argument(
        "--plan", type=existing_path, default=HERE / "plan.yaml", metavar="FILE", help="declaration of the study"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="folder for a small file with the results of each pretraining; what is in it is not done again (default: "
        "records in the output)",
    )
    parser.add_argument(
        "--text",
        action="append",
        type=_named,
        default=[],
        metavar="NAME=PATH",
        help="text that the plan names: a file, or a folder of .txt files; once for each, for the stage prepare",
    )
    parser.add_argument(
        "--files",
        default=Path(),
        type=existing_path,
        metavar="FOLDER",
        help="folder with the data of the tasks that the plan names (default: the current one)",
    )
    parser.add_argument("--scale", default="cpu", help="scale that the plan declares")
    parser.add_argument("--budgets", nargs="+", metavar="FLOP", help="some of the plan's budgets (default: all)")
    add_precision(parser)
    add_runner_arguments(parser)
    return parser


def _named(text: str) -> tuple[str, Path]:
    name, path = named(text)
    return name, existing_path(path)


def take_words(path: Path, words: int, output: Path) -> int:
    """Copy lines from the beginning of a text until there are so many words; return their number.

    A file without blank lines is cut into documents of 50 lines.
    """
    taken = 0
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    with open(output, "w", encoding="utf-8") as stream:
        for file in files:
            with open(file, encoding="utf-8") as lines:
                has_documents = any(not line.strip() for line in lines)
                lines.seek(0)
                for number, line in enumerate(lines):
                    if taken >= words:
                        break
                    taken += len(line.split())
                    ends = not has_documents and number % DOCUMENT_LINES == DOCUMENT_LINES - 1
                    stream.write(line + ("\n" if ends else ""))
            stream.write("\n")
    return taken


class Study:
    """A folder with everything that the plan asks for, as far as it is done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.plan = Plan(args.plan, args.files.resolve(), args.scale)
        self.output: Path = args.output.resolve()
        self.runner = runner_of(args)
        self.machine = machine_of(self.runner.gpus, args.precision)
        self.texts = dict(args.text)
        self.records = Records(args.records or self.output / "records", self.output / "runs", self.plan)
        self.programs = Programs(self.plan, self.output, self.records, self.machine)
        missing = set(self.plan.content["words"]) - set(self.texts) if "prepare" in args.stages else set()
        unknown = set(args.stages) - set(STAGES) or set(args.budgets or ()) - set(self.plan.budgets)
        if missing or unknown:
            raise ValueError(
                f"--text {sorted(missing)[0]}=PATH is missing" if missing else f"there is no {sorted(unknown)[0]}"
            )

    def settings(self) -> dict[str, Any]:
        """Return what decides the results; rows, budgets and tasks may be added to a study."""
        texts = {name: [str(path), path.stat().st_size] for name, path in self.texts.items()}
        names = ("words", "corpus", "common", "shapes", "methods", "choices", "fine-tuning")
        return {
            "plan": {name: self.plan.content[name] for name in names},
            "rows": {**self.plan.rows, **self.plan.budgets},
            "tasks": self.plan.tasks,
            "texts": texts,
            "precision": self.machine.precision,
        }

    # Stages

    def prepare(self) -> None:
        """Take the words, then make the corpus and the tasks with its vocabulary."""
        texts = [self.output / "text" / f"{name}.txt" for name in self.plan.content["words"]]
        if not self.runner.dry_run:
            self._take_texts(texts)
        own = words_of({"output": self.programs.data, **self.plan.content["corpus"]})
        words = ["maelm", "prepare", "corpus", *map(str, texts), *own]
        corpus = self.programs.job("corpus", self.programs.marker("corpus"), words, resumes=True)
        jobs = [corpus]
        for name, task in self.plan.tasks.items():
            target = self.programs.task_folder(name)
            target = target.parent if "folder" in task else target
            if not self.runner.dry_run:
                target.parent.mkdir(parents=True, exist_ok=True)
            words = ["maelm", "prepare", *self.programs.words(task["prepare"]), "--vocabulary", str(self.programs.data)]
            words += ["--output", str(target)]
            jobs.append(self.programs.job(f"task {name}", self.programs.marker("tasks", name), words, after=[[corpus]]))
        self.runner.do(jobs)
        if not self.runner.dry_run:
            counts = json.loads((self.programs.data / "manifest.json").read_bytes())["counts"]
            with open(self.programs.data / "dict.txt", encoding="utf-8") as file:
                vocabulary = sum(1 for _ in file) + 5
            self.records.add_to_study(vocabulary=vocabulary, tokens=counts["train"]["tokens"])

    def _take_texts(self, texts: Sequence[Path]) -> None:
        if (self.output / "words.json").exists():
            return
        for (name, words), path in zip(self.plan.content["words"].items(), texts, strict=True):
            path.parent.mkdir(exist_ok=True)
            found = take_words(self.texts[name], words, path)
            if found < 0.98 * words:
                raise ValueError(f"{self.texts[name]} has {found:,} words, and the plan takes {words:,}")
        write_json(self.output / "words.json", self.plan.content["words"])

    def choose(self) -> None:
        """Choose settings for each method, one choice after the other."""
        chosen: dict[str, dict[str, str]] = {method: {} for method in self.plan.methods}
        for choice in self.plan.choices:
            trials = {method: list(self.plan.trials(method, choice, chosen[method])) for method in chosen}
            todo = [run for runs in trials.values() for run in runs if PRETRAINING not in self._recorded(run)]
            self.runner.do([self.programs.pretraining(run) for run in todo])
            if self.runner.dry_run:
                return
            for method, runs in trials.items():
                losses = [self.records.read(run)[PRETRAINING]["loss"] for run in runs]
                chosen[method][choice] = list(self.plan.choices[choice])[losses.index(min(losses))]
        self.records.add_to_study(chosen=chosen)

    def trials(self, chosen: dict[str, dict[str, str]]) -> list[Pretraining]:
        """Return the trials of all choices."""
        trials, made = [], {method: dict[str, str]() for method in chosen}
        for choice in self.plan.choices:
            for method, own in made.items():
                trials += self.plan.trials(method, choice, own)
                own[choice] = chosen[method][choice]
        return list({run.name: run for run in trials}.values())

    def runs(self) -> list[Pretraining]:
        """Return the pretrainings that are reported, of the budgets asked for."""
        return list(self.plan.pretrainings(self.programs.about("chosen", "choose"), self.args.budgets))

    def pretrain(self) -> None:
        """Do the pretrainings of which not all is recorded."""
        runs = [run for run in self.runs() if not self._wanted(run) <= self._recorded(run).keys()]
        self.runner.do([self.programs.pretraining(run) for run in runs])

    def _wanted(self, run: Pretraining) -> set[str]:
        return {PRETRAINING, *self.programs.evaluations(run)}

    def evaluate(self) -> None:
        """Measure and fine-tune every encoder, one measure after the other: interrupted, whole columns are known."""
        todo = []
        for run in self.runs():
            known = self._recorded(run)
            todo.append({name: job for name, job in self.programs.evaluations(run).items() if name not in known})
        names = dict.fromkeys(name for jobs in todo for name in jobs)
        self.runner.do(self.programs.all_of(jobs[name] for name in names for jobs in todo if name in jobs))

    def _recorded(self, run: Pretraining) -> dict[str, Any]:
        if not self.runner.dry_run:
            self.records.update(run)
        return self.records.read(run)

    def time(self) -> None:
        """Time a few updates of every method and shape, one training at a time and all in turn, round by round."""
        rounds = range(1, self.plan.content["timing"]["rounds"] + 1)
        runs = {(self.plan.budgets[run.budget]["shape"], run.row): run for run in self.runs() if run.row != RANDOM}
        known = self.records.study().get("seconds an update", {})
        runs = {names: run for names, run in runs.items() if names[1] not in known.get(names[0], {})}
        jobs = {names: [self.programs.timing(run, number) for number in rounds] for names, run in runs.items()}
        alone = self.runner._replace(slots=self.runner.slots[:1])
        alone.do([job for turn in zip(*jobs.values()) for job in turn])
        for (shape, row), own in jobs.items() if not self.runner.dry_run else ():
            found = median((read_json(job.marker) or {})["seconds"] for job in own)
            known = {**known, shape: {**known.get(shape, {}), row: found}}
            self.records.add_to_study(**{"seconds an update": known})

    def page(self) -> None:
        """Write results.json, results.md, page.html and the figures."""
        if self.runner.dry_run:
            return
        runs = self.runs()
        for run in runs:
            self.records.update(run)
        results = summary.collect(self.plan, runs, self.trials(self.programs.about("chosen", "choose")), self.records)
        write_json(self.output / "results.json", results)
        page.write(self.plan, results, self.output)


@contextlib.contextmanager
def opened(of: Study) -> Iterator[None]:
    """Work alone in the folder of a study, unless nothing is done in it."""
    if of.runner.dry_run:
        yield
        return
    with study_folder(of.output, json.loads(json.dumps(of.settings()))):
        yield


def main(arguments: Sequence[str]) -> None:
    """Run the stages; stopped or refused, say so in a line."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    with sitting("evidence.py"):
        own = Study(args)
        with opened(own):
            stages: dict[str, Callable[[], Any]] = {name: getattr(own, name) for name in STAGES}
            for name in [name for name in STAGES if name in args.stages]:
                try:
                    stages[name]()
                except NotKnownYetError as error:
                    if not own.runner.dry_run:
                        raise
                    sys.stdout.write(f"# the commands of {name} are not known yet: {error}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
