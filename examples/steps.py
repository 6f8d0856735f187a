"""Plans with "steps": commands for each row, task, seed and whatever else the plan lists, and the order they run in."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rows_plan import Plan
from study import PRETRAINING, masking_options, model_options

from fairseq_maelm.files import sha256_of
from fairseq_maelm.studies.engine import Job, Process
from fairseq_maelm.studies.folder import data_fingerprint
from fairseq_maelm.train_command import USER_DIR, Machine, words_of

_PLACE = re.compile(r"\{([\w-]+)\}")
# Places of every plan: pretraining's usual options, and those that build and mask as the checkpoint's pretraining did.
_FOUND: dict[str, Callable[["Places"], Any]] = {
    "user-dir": lambda places: ["--user-dir", str(USER_DIR)],
    "pretraining": lambda places: ["--user-dir", str(USER_DIR), *words_of(PRETRAINING)],
    "model": lambda places: model_options(places["checkpoint"][0]),
    "masking": lambda places: masking_options(places["checkpoint"][0]),
}


class Places(dict[str, Any]):
    """Name -> value of the places ``{NAME}`` of a plan's texts: text with more places, paths, or a list of words.

    Args:
        known: the values.
        found: name -> function that computes the value of a missing name from these places.
    """

    def __init__(self, known: Mapping[str, Any], found: Mapping[str, Callable[["Places"], Any]]) -> None:
        super().__init__(known)
        self.found = found

    def __missing__(self, name: str) -> Any:
        if name not in self.found:
            raise ValueError(f"the plan has no value for the place {{{name}}}")
        return self.found[name](self)

    def text(self, template: str) -> str:
        """Fill the places of a text."""
        return _PLACE.sub(lambda place: self._text_of(self[place[1]]), template)

    def _text_of(self, value: Any) -> str:
        if isinstance(value, list):
            return ":".join(map(str, value))
        return str(value) if isinstance(value, Path) else self.text(str(value))

    def words(self, template: str) -> list[str]:
        """Fill the places of a command; a word that is a place becomes as many words as its value has."""
        words = []
        for word in shlex.split(template):
            place = _PLACE.fullmatch(word)
            value = self[place[1]] if place else None
            if value is None or isinstance(value, Path):
                words.append(self.text(word))
            else:
                words += map(str, value) if isinstance(value, list) else self.words(str(value))
        return words


class Steps:
    """The jobs of a plan with steps.

    Values at the plan's top are settings, those that are null are files or folders to be given; what a step has for
    "each" SEED are the values of SEEDS. A step "after" another follows its job with the same values, one that "waits"
    begins when all earlier ones have ended. "result" and "ended" are functions of the report.

    Args:
        plan: with steps. The ``PLACES`` of its report are computed where they are needed.
        rows: names of those to run.
        tasks: name -> folder, None for tasks that the plan declares.
        known: further places.

    Raises:
        ValueError: something is missing.
    """

    def __init__(self, plan: Plan, rows: Sequence[str], tasks: dict[str, Path | None], known: dict[str, Any]) -> None:
        self.plan, self.steps = plan, plan.content["steps"]
        self.rows = {name: plan.rows[name] or {} for name in rows}
        self.tasks = {name: self._task(name, folder) for name, folder in tasks.items()}
        settings = {name: value for name, value in plan.content.items() if not isinstance(value, dict)}
        places = {**settings, **plan.content.get("texts", {}), **known}
        self.places = Places(places, {**_FOUND, **getattr(plan.report, "PLACES", {})})
        for name, value in settings.items():
            if value is None:
                raise ValueError(f"{plan.path} needs --set {name}=PATH")
            for path in value if isinstance(value, list) else ():
                _refuse_missing(path, f"--set {name}")
        for name, step in self.steps.items():
            for places in self._instances(step):
                for path in places.words(step.get("needs", "")):
                    _refuse_missing(Path(path), f"the step {name!r}")

    def _task(self, name: str, folder: Path | None) -> dict[str, Any]:
        if folder is None:
            return self.plan.content["tasks"][name] or {}
        kinds = self.plan.content.get("kinds", {})
        for kind, fields in kinds.items():
            if (folder / f"train.{kind}").exists():
                return {**fields, "kind": kind, "folder": folder}
        wanted = " or ".join(f"train.{kind}" for kind in kinds) or f"task but {', '.join(self.plan.content['tasks'])}"
        raise ValueError(f"there is no {wanted} for --tasks {name}={folder}")

    def settings(self) -> dict[str, Any]:
        """Return what decides the results, to compare with an earlier command's, and what the table needs."""
        listed = {f"{axis}s" for step in self.steps.values() for axis in step.get("each", "").split()}
        names = sorted(self.plan.content.keys() & self.places.keys() - listed - {"report"})
        own = {name: self.places[name] for name in names}
        return {
            **{
                name: list(map(_fingerprint, value)) if isinstance(value, list) else str(value)
                for name, value in own.items()
            },
            "rows": {name: {} for name in self.rows},
            "tasks": {
                name: {field: _fingerprint(value) if field == "folder" else value for field, value in fields.items()}
                for name, fields in self.tasks.items()
            },
        }

    def groups(self) -> Iterator[list[Job]]:
        """Yield the jobs that can be run together, without their followers; the next ones when these have ended."""
        jobs: list[Job] = []
        made: dict[tuple[str, ...], Job] = {}
        for name, step in self.steps.items():
            if step.get("waits"):
                yield jobs
                jobs, made = [], {}
            for places in self._instances(step):
                job = made[self._key(name, places)] = self._job(step, places)
                before = made.get(self._key(step["after"], places)) if "after" in step else None
                (before.followers if before else jobs).append(job)
        yield jobs

    def _key(self, name: str, places: Places) -> tuple[str, ...]:
        return name, *(str(places.get(axis)) for axis in self.steps[name].get("each", "").split())

    def _instances(self, step: dict[str, Any]) -> Iterator[Places]:
        wanted = step.get("rows", " ".join(self.rows)).split()
        rows = {name: fields for name, fields in self.rows.items() if name in wanted}
        return self._each(step.get("each", "").split(), rows, self.places) if rows else iter(())

    def _each(self, axes: list[str], rows: dict[str, Any], places: Places) -> Iterator[Places]:
        if not axes:
            yield places
            return
        tables = {"row": rows, "task": self.tasks}
        values = tables[axes[0]] if axes[0] in tables else dict.fromkeys(str(places[f"{axes[0]}s"]).split(), {})
        for value, fields in values.items():
            yield from self._each(axes[1:], rows, Places({**places, **fields, axes[0]: value}, places.found))

    def _job(self, step: dict[str, Any], places: Places) -> Job:
        marker = places["output"] / places.text(step["marker"])
        job = Job(
            # Not with_suffix: a task's name may have a dot.
            str(marker.relative_to(places["output"])), marker.with_name(f"{marker.name}.json"),
            lambda slot: Process(places.words(step["run"]), {}).on(slot), resumes=step.get("resumes", False),
            clears=[Path(path) for path in places.words(step.get("clears", ""))],
        )  # fmt: skip
        if "result" in step:
            job.result = partial(getattr(self.plan.report, step["result"]), places)
        if "ended" in step:
            job.ended = partial(getattr(self.plan.report, step["ended"]), places)
        return job


def _refuse_missing(path: Path, needed_by: str) -> None:
    if not path.exists():
        raise ValueError(f"there is no {path}, which {needed_by} needs")


def _fingerprint(path: Path) -> str:
    return data_fingerprint(path) if path.is_dir() else sha256_of(path)


def machine_places(machine: Machine) -> dict[str, Any]:
    """Return the places of the machine: ``{machine}`` for fairseq-train, ``{gpus}`` and ``{precision}``."""
    return {"machine": words_of(machine.options()), "gpus": machine.gpus, "precision": machine.precision}
