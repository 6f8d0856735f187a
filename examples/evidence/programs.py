"""The programs of the study as jobs: pretrainings, fine-tunings, measurements, and timings."""

import shlex
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import study
from plan import Plan, Pretraining, command, updates_at
from records import Records, folder_name

from fairseq_maelm.studies.engine import Job, is_finished
from fairseq_maelm.studies.log import log_records
from fairseq_maelm.training.options import Machine, words_of

# Updates between two reports of a timing; the first one, in which memory is filled, does not count.
_TIMED_INTERVAL = 5


class NotKnownYetError(ValueError):
    """A stage needs what an earlier one finds out."""


class Programs:
    """Everything that is run below the folder of a study.

    Args:
        plan: of the study.
        output: folder of the study.
        records: of finished pretrainings.
        machine: that a program is computed on.
    """

    def __init__(self, plan: Plan, output: Path, records: Records, machine: Machine) -> None:
        self.plan, self.output, self.records, self.machine = plan, output, records, machine
        self.data = output / "data"

    @property
    def vocabulary(self) -> int:
        """Return the number of symbols of the prepared text."""
        return int(self.about("vocabulary", "prepare"))

    def about(self, name: str, stage: str) -> Any:
        """Return a fact about the study that a stage finds out."""
        known = self.records.study()
        if name not in known:
            path = self.records.folder / "study.json"
            raise NotKnownYetError(f"{path} does not say {name}: run the stage {stage} first")
        return known[name]

    def marker(self, *names: str) -> Path:
        """Return the file that says that a program is done."""
        return self.output.joinpath("runs", *names, "result.json")

    def task_folder(self, name: str) -> Path:
        """Return the prepared folder of a task."""
        return self.output / "tasks" / folder_name(name) / self.plan.tasks[name].get("folder", "task")

    def words(self, template: str, **values: Any) -> list[str]:
        """Fill the places of a command that the plan declares."""
        places = {"files": self.plan.files, "data": self.data, "tasks": self.output / "tasks", **values}
        return [word.format(**places) for word in shlex.split(template)]

    def job(self, name: str, marker: Path, words: list[str], **more: Any) -> Job:
        """Return the job of a command."""
        return Job(name, marker, lambda: words, **more)

    def pretraining(self, run: Pretraining) -> Job:
        """Return a pretraining, which reads the text as often as the plan allows at the most."""
        words = command(run, self.vocabulary, self.plan, self.machine, self.data, self.folder(run))
        tokens = run.updates(self.vocabulary) * run.options["max-tokens"]
        passes = tokens / self.about("tokens", "prepare")
        if passes > self.plan.content["most-passes"]:
            raise ValueError(f"{run.name} would read the text {passes:.1f} times: give more text, or a larger model")
        more: dict[str, Any] = {"resumes": True, "cost": tokens, "ended": partial(self.records.update, run)}
        return self.job(run.name, self.marker(run.name), words, result=study.last_loss, **more)

    def timing(self, run: Pretraining, number: int) -> Job:
        """Return a training of a few updates that is only timed."""
        name = f"{self.plan.budgets[run.budget]['shape']}/{folder_name(run.row)}/round_{number}"
        words = command(run, self.vocabulary, self.plan, self.machine, self.data, self.output / "timing")
        words += ["--no-save", "--disable-validation", "--max-update", str(self.plan.content["timing"]["updates"])]
        words += ["--log-interval", str(_TIMED_INTERVAL)]
        return self.job(f"{name}, timing", self.output / "timing" / name / "result.json", words, result=seconds)

    def folder(self, run: Pretraining) -> Path:
        """Return the folder of a pretraining."""
        return self.output / "runs" / run.name

    def evaluations(self, run: Pretraining) -> dict[str, Job]:
        """Return everything that is done with the checkpoints of a pretraining: name of its results -> job."""
        jobs: dict[str, Callable[[Pretraining, str], Job]] = {}
        for name, own in self.plan.measurements_of(run.budget).items():
            jobs[folder_name(name)] = partial(self._measurement, own=own)
        for task, repeats in self.plan.tasks_of(run.budget).items():
            for seed in range(1, repeats + 1):
                jobs[f"{folder_name(task)}/seed_{seed}"] = partial(self._fine_tuning, task=task, seed=seed)
        for part, updates in updates_at(self.plan, run, self.vocabulary).items():
            for task in self.plan.content["primary"]:
                name = f"{part}/{folder_name(task)}/seed_1"
                jobs[name] = partial(self._fine_tuning, task=task, seed=1, updates=updates)
        return {name: job(run, name) for name, job in jobs.items()}

    def all_of(self, jobs: Iterable[Job]) -> list[Job]:
        """Return jobs with those that they come after, each of these first."""
        return [each for job in jobs for each in (*(first for group in job.after for first in group), job)]

    def _checkpoint(self, run: Pretraining, updates: int | None = None) -> Path:
        # The number of the epoch is part of the name.
        found = sorted(self.folder(run).glob(f"checkpoint_*_{updates}.pt"))
        name = "checkpoint_last.pt" if updates is None else f"checkpoint_{updates}.pt"
        return found[-1] if found else self.folder(run) / name

    def _fine_tuning(self, run: Pretraining, name: str, task: str, seed: int, updates: int | None = None) -> Job:
        """Fine-tune, then predict with the last checkpoint, which is deleted when its predictions are recorded."""
        folder = self.folder(run) / name
        model = folder / "model"
        own = {**self.plan.content["fine-tuning"], **self.plan.tasks[task].get("fine-tuning", {}), "seed": seed}
        own |= {"gpus": min(1, self.machine.gpus), "precision": self.machine.precision}
        more = ["--no-epoch-checkpoints", "--disable-validation"]

        def training_words() -> list[str]:
            checkpoint = self._checkpoint(run, updates)
            words = ["maelm", "finetune", str(self.task_folder(task)), "--checkpoint", str(checkpoint)]
            return [*words, "--output", str(model), "--verbose", *words_of(own), "--", *more]

        predictions = folder / "predictions.tsv"
        file = self.plan.tasks[task].get("predict")
        source = self.task_folder(task) if file is None else self.plan.files / file
        predict = ["maelm", "predict", str(source), "--checkpoint", str(model / "checkpoint_last.pt")]
        predicting = self.job(
            f"{run.name}, {name}, predictions",
            folder / "result.json",
            [*predict, "--output", str(predictions)],
            result=study.last_json,
            clears=[predictions],
            ended=partial(self._predicted, run, model),
        )
        training = Job(f"{run.name}, {name}", folder / "training.json", training_words, resumes=True)
        predicting.after = [[training]]
        return predicting

    def _predicted(self, run: Pretraining, model: Path) -> None:
        self.records.update(run)
        if is_finished(model.with_name("result.json")):
            shutil.rmtree(model, ignore_errors=True)

    def _measurement(self, run: Pretraining, name: str, own: dict[str, Any]) -> Job:
        output = self.folder(run) / name
        places = {"checkpoint": self._checkpoint(run), "output": output / "files", "precision": self.machine.precision}
        words = ["maelm", *self.words(own["command"], **places)]
        more: dict[str, Any] = {} if "file" in own else {"result": study.last_json}
        more |= {"resumes": True, "ended": partial(self.records.update, run)}
        return self.job(f"{run.name}, {name}", output / "result.json", words, **more)


def seconds(log: Path) -> dict[str, Any]:
    """Return the median of the seconds that an update took, over the reports of a timing."""
    speeds = [record["ups"] for _, record in log_records(log, ["train_inner"])][1:]
    if not speeds or min(speeds) <= 0:
        raise ValueError("no speed in the log")
    return {"seconds": 1 / median(speeds)}
