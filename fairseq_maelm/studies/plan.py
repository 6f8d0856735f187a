"""Plans of studies, declared in YAML: commands for each row, task, seed and whatever else, and what they wait for."""

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.studies.engine import Job, Process
from fairseq_maelm.studies.folder import data_fingerprint
from fairseq_maelm.training.options import number_if_it_is_one

_PLACE = re.compile(r"\{([\w-]+)\}")
# Tables that do not decide the results of a run, or that are compared entry by entry.
_NOT_COMPARED = ("rows", "tasks", "kinds", "steps", "texts")


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


def axis_values(value: Any) -> list[str]:
    """Return the values of an axis, which a plan lists with spaces between them."""
    return str(value).split()


class Plan:
    """The content of a plan's file, with changes by the command line.

    Values at the plan's top are settings; those that are null are files or folders to be given, "checkpoint" also by
    the name of an encoder that comes with the package.

    Args:
        path: path of the file.
        changes: names -> values. A dot leads into a table, as in "fine-tuning.lr". Other names that the plan does not
            have belong to its table "common", if it has one.

    Raises:
        ValueError: the plan has no such setting.
    """

    def __init__(self, path: Path, changes: Mapping[str, str]) -> None:
        self.path = path
        self.content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            self._change(name, value)
        self.rows: dict[str, dict[str, Any]] = {name: row or {} for name, row in self.content["rows"].items()}
        self.steps: dict[str, dict[str, Any]] = self.content["steps"]

    def _change(self, name: str, value: str) -> None:
        table, _, inner = name.rpartition(".")
        own = self.content.get(table) if table else self.content
        if not table and name not in self.content:
            own, inner = self.content.get("common"), name
        if not isinstance(own, dict) or isinstance(own.get(inner), dict):
            raise ValueError(f"--set {name}: there is no such setting in {self.path}")
        if own is self.content and own[inner] is None:
            own[inner] = [_given(name, part) for part in value.split(":")]
        else:
            own[inner] = value if isinstance(own.get(inner), str) else number_if_it_is_one(value)

    @property
    def settings(self) -> dict[str, Any]:
        """The values at the plan's top."""
        return {name: value for name, value in self.content.items() if not isinstance(value, dict)}

    @cached_property
    def report(self) -> ModuleType:
        """The module with the functions that the plan names, and ``write`` for the tables of a study's folder."""
        path = self.path.parent / self.content["report"]
        specification = importlib.util.spec_from_file_location(path.stem, path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    def task(self, name: str, folder: Path | None) -> dict[str, Any]:
        """Return what the plan declares for a task, or for tasks of the kind that a folder has."""
        if folder is None:
            return self.content["tasks"][name] or {}
        kinds = {kind: {"file": f"train.{kind}", **own} for kind, own in self.content.get("kinds", {}).items()}
        for kind, fields in kinds.items():
            if (folder / fields["file"]).exists():
                return {**fields, "kind": kind, "folder": folder}
        known = ", ".join(self.content.get("tasks", {}))
        wanted = " or ".join(fields["file"] for fields in kinds.values()) or f"task but {known}"
        raise ValueError(f"there is no {wanted} for --tasks {name}={folder}")


def _given(name: str, part: str) -> Path:
    path = Path(part)
    return (find_checkpoint(path) if name == "checkpoint" else path).resolve()


class Steps:
    """The jobs of a plan.

    A step is made for each combination of its axes: what it has for "each" SEED are the values of SEEDS, which rows and
    tasks may set. It comes "after" the steps that it names, in those combinations that agree with its own; if one of
    them has further axes, when all of its jobs have ended and one has succeeded. "result" and "ended" are functions of
    the report or of the library.

    Args:
        plan: the plan. The ``PLACES`` of its report are computed where they are needed.
        rows: names of those to run.
        tasks: name -> what the plan declares for it.
        seeds: the most seeds of each row; None for all.
        known: further places.
        library: module with functions and ``PLACES`` for all plans.

    Raises:
        ValueError: something is missing.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Sequence[str],
        tasks: dict[str, dict[str, Any]],
        seeds: int | None,
        known: dict[str, Any],
        library: ModuleType,
    ) -> None:
        self.plan, self.tasks, self.seeds = plan, tasks, seeds
        self.rows = {name: plan.rows[name] for name in rows}
        for name, value in plan.settings.items():
            if value is None:
                raise ValueError(f"{plan.path} needs --set {name}=PATH")
            for path in value if isinstance(value, list) else ():
                _refuse_missing(path, f"--set {name}")
        self.library = library
        found = {**library.PLACES, **getattr(plan.report, "PLACES", {})}
        texts = {**plan.settings, **plan.content.get("texts", {}), "plan": plan.content}
        self.places = Places({**texts, **known}, found)
        for name, step in plan.steps.items():
            for places in self._instances(step):
                for needed in places.words(step.get("needs", "")):
                    _refuse_missing(Path(needed), f"the step {name!r}")

    def settings(self) -> dict[str, Any]:
        """Return what decides the results, to compare with an earlier command's, and what the table needs."""
        listed = {f"{axis}s" for step in self.plan.steps.values() for axis in step.get("each", "").split()}
        own = {name: value for name, value in self.plan.settings.items() if name not in {*listed, "report"}}
        tables = {name: value for name, value in self.plan.content.items() if isinstance(value, dict)}
        seeds = {"seeds": len(self._values("seed", self.places))} if "seeds" in listed else {}
        return {
            **{
                name: list(map(_fingerprint, value)) if isinstance(value, list) else str(value)
                for name, value in own.items()
            },
            **seeds,
            "plan": {name: table for name, table in tables.items() if name not in _NOT_COMPARED},
            "rows": self.rows,
            "tasks": {
                name: {field: _fingerprint(value) if field == "folder" else value for field, value in fields.items()}
                for name, fields in self.tasks.items()
            },
        }

    def jobs(self) -> list[Job]:
        """Return all jobs, step by step."""
        made: list[tuple[str, Places, Job]] = []
        for name, step in self.plan.steps.items():
            for places in self._instances(step):
                job = self._job(step, places)
                before = step.get("after", "").split()
                job.after = [group for each in before if (group := self._matching(each, step, places, made))]
                made.append((name, places, job))
        return [job for *_, job in made]

    def _matching(
        self, name: str, step: dict[str, Any], places: Places, made: list[tuple[str, Places, Job]]
    ) -> list[Job]:
        """Return the jobs of a step that agree with the places of a later step."""
        earlier = self.plan.steps[name]
        if "row" in places and places["row"] not in earlier.get("rows", places["row"]).split():
            return []
        axes = set(step.get("each", "").split()) & set(earlier.get("each", "").split())
        return [job for each, own, job in made if each == name and all(own[axis] == places[axis] for axis in axes)]

    def _instances(self, step: dict[str, Any]) -> Iterator[Places]:
        wanted = step.get("rows", " ".join(self.rows)).split()
        rows = {name: fields for name, fields in self.rows.items() if name in wanted}
        return self._each(step.get("each", "").split(), rows, self.places) if rows else iter(())

    def _each(self, axes: list[str], rows: dict[str, Any], places: Places) -> Iterator[Places]:
        if not axes:
            yield places
            return
        tables = {"row": rows, "task": self.tasks}
        values = tables[axes[0]] if axes[0] in tables else dict.fromkeys(self._values(axes[0], places), {})
        for value, fields in values.items():
            yield from self._each(axes[1:], rows, Places({**places, **fields, axes[0]: value}, places.found))

    def _values(self, axis: str, places: Places) -> list[str]:
        return axis_values(places[f"{axis}s"])[: self.seeds if axis == "seed" else None]

    def _job(self, step: dict[str, Any], places: Places) -> Job:
        def marker() -> Path:
            path: Path = places["output"] / places.text(step["marker"])
            # Not with_suffix: a task's name may have a dot.
            return path.with_name(f"{path.name}.json")

        def process(slot: str) -> Process:
            return Process(places.words(step["run"]), {}).on(slot.split(",")[0] if step.get("one-gpu") else slot)

        name = str(marker().relative_to(places["output"]).with_suffix(""))
        clears = [Path(path) for path in places.words(step.get("clears", ""))]
        job = Job(name, marker, process, resumes=step.get("resumes", False), clears=clears)
        if "cost" in step:
            job.cost = float(places.text(str(step["cost"])))
        if "result" in step:
            job.result = partial(self._function(step["result"]), places)
        if "ended" in step:
            job.ended = partial(self._function(step["ended"]), places)
        return job

    def _function(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self.plan.report, name, None) or getattr(self.library, name)
        return found


def _refuse_missing(path: Path, needed_by: str) -> None:
    if not path.exists():
        raise ValueError(f"there is no {path}, which {needed_by} needs")


def _fingerprint(path: Path) -> str:
    return data_fingerprint(path) if path.is_dir() else sha256_of(path)
