"""One side-by-side measurement: all contenders in turn, one at a time, again and again."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training_step.contenders import label
from training_step.cost import step_products
from training_step.metrics import summarize
from training_step.processes import Worker, WorkerError
from training_step.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Settings of a measurement."""

    contenders: tuple[str, ...]  # names, in the order of the tables
    references: tuple[str, ...]  # names that the others are compared with
    data: str  # folder with the training text
    code: Path | None  # the authors' repository
    extra: tuple[str, ...]  # more words for the command line of ours
    repeats: int  # rounds over all contenders
    steps: int  # timed, of a contender in a round, with prepared batches and again with loaded ones
    untimed: int  # steps before them in every round
    warm_up: int  # steps of each contender before the first round
    profiled: int  # steps that are taken apart by stages
    iterations: int  # of each bare matrix product in one round
    timeout: float  # seconds that anything may take
    brief: bool = False  # neither take steps with loaded batches nor take one apart


def say(text: str) -> None:
    """Tell how far the measurement is."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


class Measurement:
    """One run of a plan with the settings of all contenders.

    No further round begins after the ``deadline``, of ``time.monotonic()``; the first is always finished.
    """

    def __init__(self, settings: Settings, plan: Plan, deadline: float) -> None:
        self.settings = settings
        self.plan = plan
        self.deadline = deadline
        self.results: dict[str, dict[str, Any]] = {name: {} for name in plan.contenders}
        self.workers: dict[str, Worker] = {}
        self.machine: dict[str, Any] = {}
        self.products: dict[str, Any] = {"shapes": [], "repeats": []}
        self._bare: Worker | None = None

    def run(self) -> dict[str, Any]:
        """Measure; a failure is recorded in the result of ``summarize`` and does not stop the others."""
        say(self.settings.describe())
        load = os.getloadavg()[0]
        try:
            self._build()
            self._rounds()
            self._finish()
        finally:
            for worker in [*self.workers.values(), *([self._bare] if self._bare else [])]:
                worker.close()
        measured = {
            "settings": self.settings.as_dict(),
            "references": list(self.plan.references),
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "load_before_and_after": [round(load, 2), round(os.getloadavg()[0], 2)],
            "machine": self.machine,
            "steps": {name: getattr(self.plan, name) for name in ("steps", "untimed", "warm_up", "iterations")},
            "contenders": self.results,
            "products": self.products,
        }
        return summarize(measured)

    def _attempt(self, name: str, action: Callable[[Worker], Any]) -> Any:
        """Ask a contender's worker; a failure ends it and becomes its result."""
        worker = self.workers.get(name)
        if worker is None:
            return None
        try:
            return action(worker)
        except WorkerError as error:
            say(f"{label(name)} failed: {error}")
            say(worker.log_text()[-3000:])
            self.results[name] = {"error": self._without_paths(str(error))}
            worker.close()
            del self.workers[name]
            return None

    def _without_paths(self, text: str) -> str:
        """Results are for everyone, paths for one machine."""
        if self.plan.code is not None:
            text = text.replace(str(self.plan.code), "AUTHORS_CODE")
        return text.replace(self.plan.data, "DATA").replace(f"{Path(__file__).resolve().parents[2]}/", "")

    def _build(self) -> None:
        order = {"data": self.plan.data, "code": str(self.plan.code) if self.plan.code else None}
        order["extra"] = list(self.plan.extra)
        for name in self.plan.contenders:
            self.workers[name] = Worker(name, self.settings, order, self.plan.timeout)
            # All at the same time: nobody looks at the clock yet.
            self._attempt(name, lambda worker: worker.send("build"))
        for name in self.plan.contenders:
            built = self._attempt(name, lambda worker: worker.receive())
            if built is not None:
                say(f"{label(name)} is set up; {self.plan.warm_up} steps to warm up")
                self.machine = built.pop("machine")
                built["command"] = self._without_paths(shlex.join(built["command"]))
                self.results[name] = {"sizes": built, "prepared": [], "loaded": []}
                self._attempt(name, self._warm_up)
        self._prepare_products()

    def _warm_up(self, worker: Worker) -> None:
        worker.ask("warm_up", count=self.plan.warm_up)
        worker.ask("reset_memory")

    def _prepare_products(self) -> None:
        shapes: dict[Any, int] = {}
        for name in self.workers:
            shapes.update(step_products(name, self.settings, self.results[name]["sizes"]))
        self.products["shapes"] = [list(shape) for shape in shapes]
        self._bare = Worker(None, self.settings, {"iterations": self.plan.iterations}, self.plan.timeout)

    def _rounds(self) -> None:
        names = list(self.plan.contenders)
        for number in range(self.plan.repeats):
            start = time.monotonic()
            # Each round begins with another contender, so that none always follows the same one.
            first = number % len(names)
            for name in names[first:] + names[:first]:
                self._attempt(name, lambda worker, name=name: self._round(name, worker))
            self._measure_products()
            elapsed = time.monotonic() - start
            say(f"round {number + 1} of {self.plan.repeats}: {elapsed:.0f} s")
            if not self.workers or time.monotonic() + elapsed > self.deadline:
                break

    def _round(self, name: str, worker: Worker) -> None:
        for source in ("prepared",) if self.plan.brief else ("prepared", "loaded"):
            asked = {"count": self.plan.steps, "untimed": self.plan.untimed, "loaded": source == "loaded"}
            seconds = worker.ask("steps", **asked)
            self.results[name][source].append({clock: round(value, 6) for clock, value in seconds.items()})

    def _measure_products(self) -> None:
        if self._bare is None or not self.workers:
            return
        try:
            seconds = self._bare.ask("seconds", shapes=self.products["shapes"])
        except WorkerError as error:
            say(f"the bare matrix products failed: {error}")
            self.products = {"shapes": [], "repeats": [], "error": str(error)}
            self._bare.close()
            self._bare = None
            return
        self.products["repeats"].append([{"seconds": each} for each in seconds])

    def _finish(self) -> None:
        for name in self.plan.contenders:
            memory = self._attempt(name, lambda worker: worker.ask("read_memory"))
            count = 0 if self.plan.brief else self.plan.profiled
            stages = self._attempt(
                name, lambda worker, count=count: worker.ask("profile", count=count) if count else {}
            )
            if stages is not None:
                self.results[name]["memory"] = memory
                self.results[name]["profile"] = {stage: round(value, 6) for stage, value in stages.items()}
