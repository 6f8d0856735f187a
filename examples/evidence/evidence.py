#!/usr/bin/env python3
"""Pretrain by several methods with equal compute, fine-tune and probe the encoders, and write one page about it.

Each stage can be run by itself, and takes up what an interruption left.
"""

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

# First, because it finds the package.
from plan import RANDOM, Plan, Pretraining, folder_name  # isort: skip
import page
import study
import summary
import yaml
from records import PRETRAINING, Records, correct, course, numbers

from fairseq_maelm.files.atomic import parse_json, write_json
from fairseq_maelm.options import CommandParser, existing_path, named
from fairseq_maelm.sweep.folder import study_folder
from fairseq_maelm.sweep.jobs import Job, is_finished, read_json
from fairseq_maelm.sweep.log import log_records
from fairseq_maelm.sweep.plan import Places, Steps
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.training.options import add_precision, machine_of, words_of

HERE = Path(__file__).resolve().parent
STAGES = ("prepare", "choose", "pretrain", "evaluate", "time", "page")
STEPS: dict[str, Any] = yaml.safe_load((HERE / "steps.yaml").read_text(encoding="utf-8"))
# Lines of a document in a text without blank lines.
DOCUMENT_LINES = 50


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", default=STAGES,
        help=f"stages to run, of: {', '.join(STAGES)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="folder of the study")
    parser.add_argument(
        "--plan", type=existing_path, default=HERE / "plan.yaml", metavar="FILE", help="declaration of the study"
    )
    parser.add_argument(
        "--records", type=Path, metavar="FILE",
        help="JSON-lines file with the results of each pretraining; results in it are not computed again (default: "
        "records.jsonl in the output folder)",
    )  # fmt: skip
    parser.add_argument(
        "--text", action="append", type=_named, default=[], metavar="NAME=PATH",
        help="text that the plan names: a file, or a folder of .txt files; the stage prepare needs each of them",
    )  # fmt: skip
    parser.add_argument(
        "--files", default=Path(), type=existing_path, metavar="FOLDER",
        help="folder with the data of the tasks that the plan names (default: the current one)",
    )  # fmt: skip
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


class NotKnownYetError(ValueError):
    """A stage needs what an earlier one finds out."""


class Study:
    """A folder with everything that the plan asks for, as far as it is done; its methods are functions of the steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.plan = Plan(args.plan, args.files.resolve(), args.scale)
        self.output: Path = args.output.resolve()
        self.data = self.output / "data"
        self.runner = runner_of(args)
        self.machine = machine_of(self.runner.gpus, args.precision)
        self.texts = dict(args.text)
        self.records = Records(args.records or self.output / "records.jsonl", self.output / "runs")
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

    def about(self, name: str, stage: str) -> Any:
        """Return a fact about the study that a stage finds out."""
        known = self.records.study()
        if name not in known:
            raise NotKnownYetError(f"{self.records.path} lacks {name}: run the stage {stage} first")
        return known[name]

    @property
    def vocabulary(self) -> int:
        """Return the number of symbols of the prepared text."""
        return int(self.about("vocabulary", "prepare"))

    def do(self, *steps: str, runs: Iterable[Pretraining] = (), runner: Runner | None = None) -> list[Job]:
        """Run some steps, for some pretrainings."""
        content = {**STEPS, "steps": {name: STEPS["steps"][name] for name in steps}}
        known = {"output": self.output, "data": self.data, "files": self.plan.files, "tasks": self.output / "tasks",
                 "precision": self.machine.precision, "runs": {run.name: {"of": run} for run in runs}}  # fmt: skip
        jobs = Steps(content, {}, self.plan.tasks, known, [self]).jobs()
        (runner or self.runner).do(jobs)
        return jobs

    # Stages

    def prepare(self) -> None:
        """Take the words, then make the corpus and the tasks with its vocabulary."""
        if not self.runner.dry_run:
            self._take_texts()
        self.do("corpus", "task")
        if not self.runner.dry_run:
            counts = json.loads((self.data / "manifest.json").read_bytes())["counts"]
            with open(self.data / "dict.txt", encoding="utf-8") as file:
                vocabulary = sum(1 for _ in file) + 5
            self.records.add_to_study(vocabulary=vocabulary, tokens=counts["train"]["tokens"])

    def _take_texts(self) -> None:
        for name in self.plan.tasks:
            self._target(name).parent.mkdir(parents=True, exist_ok=True)
        if (self.output / "words.json").exists():
            return
        (self.output / "text").mkdir(exist_ok=True)
        for name, words in self.plan.content["words"].items():
            found = take_words(self.texts[name], words, self.output / "text" / f"{name}.txt")
            if found < 0.98 * words:
                raise ValueError(f"{self.texts[name]} has {found:,} words, but the plan needs {words:,}")
        write_json(self.output / "words.json", self.plan.content["words"])

    def choose(self) -> None:
        """Choose settings for each method, one choice after the other."""
        chosen: dict[str, dict[str, str]] = {method: {} for method in self.plan.methods}
        for choice in self.plan.choices:
            trials = {method: list(self.plan.trials(method, choice, chosen[method])) for method in chosen}
            todo = [run for runs in trials.values() for run in runs if PRETRAINING not in self.recorded(run)]
            self.do("pretraining", runs=todo)
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
        chosen = self.about("chosen", "choose")
        missing = [method for method in self.plan.methods if method not in chosen]
        if missing:
            raise NotKnownYetError(
                f"{self.records.path} lacks the settings of {missing[0]}: run the stage choose first"
            )
        return list(self.plan.pretrainings(chosen, self.args.budgets))

    def pretrain(self) -> None:
        """Do the pretrainings of which not all is recorded."""
        todo = []
        for run in self.runs():
            wanted = {PRETRAINING, *self.plan.measurements(run), *self.plan.fine_tunings(run, self.vocabulary)}
            todo += [run] if wanted - self.recorded(run).keys() else []
        self.do("pretraining", runs=todo)

    def evaluate(self) -> None:
        """Measure and fine-tune every encoder."""
        for run in [] if self.runner.dry_run else self.runs():
            for own in self._missing(run, self.plan.fine_tunings(run, self.vocabulary)).values():
                if not self._folder(own["tuned"]).exists():
                    raise NotKnownYetError(f"there is no {self._folder(own['tuned'])}: run the stage prepare first")
        self.do("measurement", "fine-tuning", "predictions", runs=self.runs())

    def recorded(self, run: Pretraining) -> dict[str, Any]:
        """Return what is recorded of a pretraining, with what its programs have written since the last time."""
        if not self.runner.dry_run:
            self.records.update(run)
        return self.records.read(run)

    def time(self) -> None:
        """Time a few updates of every method and shape, one training at a time and all in turn."""
        known = self.records.study().get("seconds an update", {})
        runs = {(self.plan.shape(run), run.row): run for run in self.runs() if run.row != RANDOM}
        runs = {names: run for names, run in runs.items() if names[1] not in known.get(names[0], {})}
        if runs:
            jobs = self.do("timing", runs=runs.values(), runner=self.runner._replace(slots=self.runner.slots[:1]))
            for (shape, row), run in runs.items() if not self.runner.dry_run else ():
                own = [job.marker for job in jobs if f"/{self._timed(run)}/" in str(job.marker)]
                found = median((read_json(marker) or {})["seconds"] for marker in own)
                known = {**known, shape: {**known.get(shape, {}), row: found}}
                self.records.add_to_study(**{"seconds an update": known})

    def page(self) -> None:
        """Write results.json, results.md, page.html and the figures."""
        if self.runner.dry_run:
            return
        runs = self.runs()
        for run in runs:
            self.records.update(run)
        results = summary.collect(self.plan, runs, self.trials(self.about("chosen", "choose")), self.records)
        write_json(self.output / "results.json", results)
        page.write(self.plan, results, self.output)

    # Functions of the steps

    @property
    def PLACES(self) -> dict[str, Callable[[Any], Any]]:
        """Return the computed places."""
        content = self.plan.content
        return {
            "words-of-texts": lambda places: [self.output / "text" / f"{name}.txt" for name in content["words"]],
            "corpus-options": lambda places: words_of(content["corpus"]),
            "target": lambda places: self._target(places["task"]),
            "pretraining": self._pretraining,
            "cost": lambda places: self._tokens(places["of"]),
            "measurements": lambda places: self._missing(places["of"], self.plan.measurements(places["of"])),
            "fine-tunings": lambda places: self._missing(
                places["of"], self.plan.fine_tunings(places["of"], self.vocabulary)
            ),
            "checkpoint": lambda places: self._checkpoint(places["of"], places.get("updates")),
            "prepared": lambda places: self._folder(places["tuned"]),
            "source": lambda places: self._source(places["tuned"]),
            "options": lambda places: words_of({**places["own"], "gpus": min(1, self.machine.gpus),
                                                "precision": self.machine.precision}),
            "timed": lambda places: self._timed(places["of"]),
            "rounds": lambda places: " ".join(str(number + 1) for number in range(content["timing"]["rounds"])),
            "timed-updates": lambda places: content["timing"]["updates"],
        }  # fmt: skip

    def _target(self, task: str) -> Path:
        """Return the output of the command that prepares a task, which may hold several tasks."""
        folder = self._folder(task)
        return folder.parent if "folder" in self.plan.tasks[task] else folder

    def _folder(self, task: str) -> Path:
        return self.output / "tasks" / folder_name(task) / self.plan.tasks[task].get("folder", "task")

    def _source(self, task: str) -> Path:
        file = self.plan.tasks[task].get("predict")
        return self._folder(task) if file is None else self.plan.files / file

    def _missing(self, run: Pretraining, wanted: dict[str, Any]) -> dict[str, Any]:
        known = self.recorded(run)
        return {name: fields for name, fields in wanted.items() if name not in known}

    def _tokens(self, run: Pretraining) -> int:
        max_tokens: int = run.options["max-tokens"]
        return run.updates(self.vocabulary) * max_tokens

    def _pretraining(self, places: Places) -> list[str]:
        """Return the command of a pretraining, which reads the text as often as the plan allows at the most."""
        run = places["of"]
        passes = self._tokens(run) / self.about("tokens", "prepare")
        if passes > self.plan.content["most-passes"]:
            raise ValueError(f"{run.name} would read the text {passes:.1f} times: give more text or a larger model")
        save_dir = self.output / ("timing" if "round" in places else f"runs/{run.name}")
        return self.plan.command(run, self.vocabulary, self.machine, self.data, save_dir)

    def _checkpoint(self, run: Pretraining, updates: int | None) -> Path:
        # The number of the epoch is part of the name.
        folder = self.output / "runs" / run.name
        found = sorted(folder.glob(f"checkpoint_*_{updates}.pt"))
        return found[-1] if found else folder / f"checkpoint_{updates or 'last'}.pt"

    def _timed(self, run: Pretraining) -> str:
        return f"{self.plan.shape(run)}/{folder_name(run.row)}"

    def pretrained(self, places: Places, log: Path) -> dict[str, Any]:
        """Return the result and the course of a pretraining."""
        return {**study.last_loss(log), **course(log)}

    def measured(self, places: Places, log: Path) -> dict[str, Any]:
        """Return the numbers of a measurement."""
        own = places["own"]
        if "file" not in own:
            return numbers(own, study.last_json(log))
        path = Path(places.text("{results}"), own["file"])
        return numbers(own, parse_json(path.read_bytes(), path))

    def predicted(self, places: Places, log: Path) -> dict[str, Any]:
        """Return the scores of a fine-tuned model, and which labels are right; not of checkpoints in a pretraining."""
        labels = self.plan.tasks[places["tuned"]].get("labels") if places["updates"] is None else None
        right = correct(Path(places.text("{predictions}")), self.plan.files / labels) if labels else None
        return {**study.last_json(log), **({"correct": right} if right else {})}

    def seconds(self, places: Places, log: Path) -> dict[str, Any]:
        """Return the median of the seconds that an update took, over the reports of a timing but the first."""
        speeds = [record["ups"] for _, record in log_records(log, ["train_inner"])][1:]
        if not speeds or min(speeds) <= 0:
            raise ValueError("no speed in the log")
        return {"seconds": 1 / median(speeds)}

    def record(self, places: Places) -> None:
        """Record what the programs of a pretraining have written."""
        self.records.update(places["of"])

    def record_predictions(self, places: Places) -> None:
        """Record the scores of a fine-tuned model, and delete it."""
        self.record(places)
        if is_finished(Path(places.text("{predictions}")).with_name("result.json")):
            shutil.rmtree(places.text("{model}"), ignore_errors=True)


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
