#!/usr/bin/env python3
"""Pretrain by several methods with equal compute, fine-tune and probe the encoders, and write one page about it.

Each stage can be run by itself, and takes up what an interruption left.
"""

import argparse
import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# First, because it finds the package.
from plan import Plan, Pretraining, command  # isort: skip
import page
import study
import summary
from records import PRETRAINING, Records, folder_name, last_json

from fairseq_maelm.arguments import CommandParser, existing_path
from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.jobs import Job, Process, is_finished
from fairseq_maelm.sweep.runner import add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import study_folder
from fairseq_maelm.train_command import add_precision, machine_of, words_of

HERE = Path(__file__).resolve().parent
STAGES = ("prepare", "choose", "pretrain", "evaluate", "page")
# Lines of a text without documents of its own that make one.
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
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
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
        self.args, self.files = args, args.files.resolve()
        self.plan = Plan(args.plan, self.files, args.scale)
        self.output: Path = args.output.resolve()
        self.data = self.output / "data"
        self.runner = runner_of(args)
        self.machine = machine_of(self.runner.gpus, args.precision)
        self.texts = dict(args.text)
        self.records = Records(args.records or self.output / "records", self.output / "runs", self.plan)
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

    @property
    def vocabulary(self) -> int:
        """Return the number of symbols of the prepared text."""
        return int(self._about("vocabulary", "prepare"))

    def _about(self, name: str, stage: str) -> Any:
        known = self.records.study()
        if name not in known:
            raise ValueError(f"{self.records.folder / 'study.json'} does not say {name}: run the stage {stage} first")
        return known[name]

    def marker(self, *names: str) -> Path:
        """Return the file that says that a program is done."""
        return self.output.joinpath("runs", *names, "result.json")

    def task_folder(self, name: str) -> Path:
        """Return the prepared folder of a task."""
        return self.output / "tasks" / folder_name(name) / self.plan.tasks[name].get("folder", "task")

    def words(self, template: str, **values: Any) -> list[str]:
        """Fill the places of a command that the plan declares."""
        places = {"files": self.files, "data": self.data, "tasks": self.output / "tasks", **values}
        return [word.format(**places) for word in shlex.split(template)]

    # Stages

    def prepare(self) -> None:
        """Take the words, then make the corpus and the tasks with its vocabulary."""
        folder = self.output / "text"
        texts = []
        for name, words in self.plan.content["words"].items():
            texts.append(folder / f"{name}.txt")
            if not (self.output / "words.json").exists():
                folder.mkdir(exist_ok=True)
                found = take_words(self.texts[name], words, texts[-1])
                if found < 0.98 * words:
                    raise ValueError(f"{self.texts[name]} has {found:,} words, and the plan takes {words:,}")
        write_json(self.output / "words.json", self.plan.content["words"])
        own = words_of({"output": self.data, **self.plan.content["corpus"]})
        corpus = Process(["maelm", "prepare", "corpus", *map(str, texts), *own], {})
        tasks = []
        for name, task in self.plan.tasks.items():
            target = self.task_folder(name)
            target = target.parent if "folder" in task else target
            target.parent.mkdir(parents=True, exist_ok=True)
            words = ["maelm", "prepare", *self.words(task["prepare"]), "--vocabulary", str(self.data)]
            tasks.append(self._job(f"task {name}", self.marker("tasks", name), [*words, "--output", str(target)]))
        self.runner.do([Job("corpus", self.marker("corpus"), corpus.on, resumes=True, followers=tasks)])
        if not self.runner.dry_run:
            counts = json.loads((self.data / "manifest.json").read_bytes())["counts"]
            with open(self.data / "dict.txt", encoding="utf-8") as file:
                vocabulary = sum(1 for _ in file) + 5
            self.records.add_to_study(vocabulary=vocabulary, tokens=counts["train"]["tokens"])

    def choose(self) -> None:
        """Choose settings for each method, one choice after the other."""
        chosen: dict[str, dict[str, str]] = {method: {} for method in self.plan.methods}
        for choice in self.plan.choices:
            trials = {method: list(self.plan.trials(method, choice, chosen[method])) for method in chosen}
            todo = [run for runs in trials.values() for run in runs if PRETRAINING not in self._recorded(run)]
            self.runner.do([self._pretraining(run) for run in todo])
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
        runs = self.plan.pretrainings(self._about("chosen", "choose"))
        return [run for run in runs if run.budget in (self.args.budgets or self.plan.budgets)]

    def pretrain(self) -> None:
        """Do the pretrainings of which not all is recorded."""
        runs = [run for run in self.runs() if not {PRETRAINING, *self._evaluations(run)} <= self._recorded(run).keys()]
        self.runner.do([self._pretraining(run) for run in runs])

    def evaluate(self) -> None:
        """Fine-tune and measure every encoder."""
        jobs = []
        for run in self.runs():
            known = self._recorded(run)
            jobs += [job for name, job in self._evaluations(run).items() if name not in known]
        self.runner.do(jobs)

    def _recorded(self, run: Pretraining) -> dict[str, Any]:
        if not self.runner.dry_run:
            self.records.update(run)
        return self.records.read(run)

    def _evaluations(self, run: Pretraining) -> dict[str, Job]:
        """Return what is done with an encoder: name of the results -> programs."""
        jobs = {
            f"{folder_name(task)}/seed_{seed}": self._fine_tuning(run, task, seed)
            for task, repeats in self.plan.tasks_of(run.budget).items()
            for seed in range(1, repeats + 1)
        }
        measurements = self.plan.measurements_of(run.budget)
        return {**jobs, **{folder_name(name): self._measurement(run, name, own) for name, own in measurements.items()}}

    def page(self) -> None:
        """Write results.json, results.md, page.html and the figures."""
        if self.runner.dry_run:
            return
        runs = self.runs()
        for run in runs:
            self.records.update(run)
        results = summary.collect(self.plan, runs, self.trials(self._about("chosen", "choose")), self.records)
        write_json(self.output / "results.json", results)
        page.write(self.plan, results, self.output)

    # Programs

    def _job(self, name: str, marker: Path, words: list[str], **more: Any) -> Job:
        return Job(name, marker, lambda slot: Process(words, {}).on(slot), **more)

    def _pretraining(self, run: Pretraining) -> Job:
        save_dir = self.output / "runs" / run.name
        words = command(run, self.vocabulary, self.machine.options(), self.data, save_dir)
        updates = run.updates(self.vocabulary)
        tokens = updates * run.options["max-tokens"]
        passes = tokens / self._about("tokens", "prepare")
        if passes > self.plan.content["most-passes"]:
            raise ValueError(f"{run.name} would read the text {passes:.1f} times: give more text, or a larger model")
        more: dict[str, Any] = {"resumes": True, "cost": tokens, "ended": partial(self.records.update, run)}
        return self._job(run.name, self.marker(run.name), words, result=study.last_loss, **more)

    def _checkpoint(self, run: Pretraining) -> Path:
        return self.output / "runs" / run.name / "checkpoint_last.pt"

    def _fine_tuning(self, run: Pretraining, task: str, seed: int) -> Job:
        """Fine-tune, then predict with the last checkpoint, which is deleted when its predictions are recorded."""
        folder = self.output / "runs" / run.name / folder_name(task) / f"seed_{seed}"
        model, name = folder / "model", f"{run.name}, {task}, seed {seed}"
        own = {**self.plan.content["fine-tuning"], **self.plan.tasks[task].get("fine-tuning", {}), "seed": seed}
        own |= {"gpus": min(1, self.machine.gpus), "precision": self.machine.precision}
        more = ["--no-epoch-checkpoints", "--disable-validation"]
        words = study.fine_tuning(self.task_folder(task), self._checkpoint(run), model, own, more)
        predictions = folder / "predictions.tsv"
        predict = ["maelm", "predict", str(self.task_folder(task)), "--checkpoint", str(model / "checkpoint_last.pt")]
        follower = self._job(
            f"{name}, predictions",
            folder / "result.json",
            [*predict, "--output", str(predictions)],
            result=last_json,
            clears=[predictions],
            ended=partial(self._predicted, run, model),
        )
        return self._job(name, folder / "training.json", words, resumes=True, followers=[follower])

    def _predicted(self, run: Pretraining, model: Path) -> None:
        self.records.update(run)
        if is_finished(model.with_name("result.json")):
            shutil.rmtree(model, ignore_errors=True)

    def _measurement(self, run: Pretraining, name: str, own: dict[str, Any]) -> Job:
        output = self.output / "runs" / run.name / folder_name(name)
        places = {"checkpoint": self._checkpoint(run), "output": output / "files", "precision": self.machine.precision}
        words = ["maelm", *self.words(own["command"], **places)]
        more: dict[str, Any] = {} if "file" in own else {"result": last_json}
        more |= {"resumes": True, "ended": partial(self.records.update, run)}
        return self._job(f"{run.name}, {name}", output / "result.json", words, **more)


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
                stages[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
