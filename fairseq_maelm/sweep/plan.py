"""Study plans: YAML files that declare commands for each row, task, seed or other axis, and their dependencies.

The commands of a plan contain placeholders ``{NAME}`` for its settings and texts, and for fields of its tables:

- ``rows``, ``tasks``: name -> fields, which are placeholders in the jobs of this row or task. ``kinds``: fields for
  tasks that are given as folders; a file in the folder determines the kind.
- ``steps``: name -> step. A step becomes one job for each combination of the axes in its ``each``. The values of an
  axis such as ``seed`` are listed in ``seeds``, as words, as a list, or as a table (whose fields are placeholders too);
  rows and tasks may set their own. ``rows`` restricts a step to some rows. ``after`` names earlier steps: a job waits
  for their jobs with the same values of common axes, and runs if at least one of each step succeeded; ``after-all`` is
  the same for the jobs of all rows. ``run`` is the command, ``marker`` the path of the result without suffix. Optional:
  ``name`` for messages; ``environment``, ``one-gpu``, ``resumes``, ``clears`` and ``cost`` (see ``Job``); ``needs``,
  the required files; and the names of two functions, ``result``(placeholder values, log) and ``ended``(placeholder
  values).
- ``report``: Python file with the functions of ``result`` and ``ended``, with ``PLACES`` (name -> function that
  computes a placeholder's value from the others), and with ``write``, which makes the tables of results.

All other top-level values are settings. Null marks a file or folder that the command line must give; "checkpoint" may
also be the name of an encoder that comes with the package.
"""

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.sweep.folder import data_fingerprint
from fairseq_maelm.sweep.jobs import Job
from fairseq_maelm.training.options import number_if_it_is_one

_PLACE = re.compile(r"\{([\w-]+)\}")
# Tables that are compared entry by entry, or by their use in commands.
_NOT_COMPARED = ("rows", "tasks", "kinds", "steps", "texts")
Table = Mapping[str, Mapping[str, Any]]


class Places(dict[str, Any]):
    """Values for the placeholders ``{NAME}`` in a plan: paths, lists of words, or text that may contain placeholders.

    Args:
        known: name -> value.
        found: name -> function that computes the value from this object, for names that are not in ``known``.
    """

    def __init__(self, known: Mapping[str, Any], found: Mapping[str, Callable[["Places"], Any]]) -> None:
        super().__init__(known)
        self.found = found

    def __missing__(self, name: str) -> Any:
        if name not in self.found:
            raise ValueError(f"the plan has no value for the placeholder {{{name}}}")
        return self.found[name](self)

    def text(self, template: Any) -> str:
        """Fill in the placeholders in a text."""
        return _PLACE.sub(lambda place: self._text_of(self[place[1]]), str(template))

    def _text_of(self, value: Any) -> str:
        if isinstance(value, list):
            return ":".join(map(str, value))
        return str(value) if isinstance(value, Path) else self.text(value)

    def words(self, template: str) -> list[str]:
        """Split a command into words and fill in the placeholders; a list becomes several words."""
        words = []
        for word in shlex.split(template):
            place = _PLACE.fullmatch(word)
            value = self[place[1]] if place else None
            if value is None or isinstance(value, Path):
                words.append(self.text(word))
            else:
                words += map(str, value) if isinstance(value, list) else self.words(str(value))
        return words


class Plan:
    """A plan's content, changed by settings from the command line.

    Args:
        path: path of the plan; ``report`` in the plan is relative to the plan's folder.
        changes: name -> value. "fine-tuning.lr" is the entry "lr" of the table "fine-tuning". A name without a dot that
            the plan lacks is an entry of the table "common", if there is one.

    Raises:
        ValueError: the plan has no such setting.
    """

    def __init__(self, path: Path, changes: Mapping[str, str]) -> None:
        self.path = path
        self.content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            self._change(name, value)
        self.rows: dict[str, dict[str, Any]] = {name: row or {} for name, row in self.content["rows"].items()}
        self.report = import_file(path.parent / self.content["report"])

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

    def task(self, name: str, folder: Path | None) -> dict[str, Any]:
        """Return the fields of a task: the plan's entry or, for a task in a folder, the fields of its kind."""
        if folder is None:
            return self.content["tasks"][name] or {}
        kinds = {kind: {"file": f"train.{kind}", **own} for kind, own in self.content.get("kinds", {}).items()}
        for kind, fields in kinds.items():
            if (folder / fields["file"]).exists():
                return {**fields, "kind": kind, "folder": folder}
        known = ", ".join(self.content.get("tasks", {}))
        wanted = " or ".join(fields["file"] for fields in kinds.values()) or f"such task (only {known})"
        raise ValueError(f"there is no {wanted} for --tasks {name}={folder}")


def import_file(path: Path) -> Any:
    """Import a Python file that is not part of a package."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _given(name: str, part: str) -> Path:
    path = Path(part)
    return (find_checkpoint(path) if name == "checkpoint" else path).resolve()


class Steps:
    """The jobs of a plan.

    Args:
        content: the content of the plan.
        rows: name -> fields of the rows to run.
        tasks: name -> fields of the tasks to run.
        known: values of further placeholders.
        functions: modules or objects with functions and ``PLACES``; earlier ones take precedence.
        seeds: maximum number of seeds of each row; None for all.

    Raises:
        ValueError: a setting or a file that the plan needs is missing, or a step waits for one that follows it.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        rows: Table,
        tasks: Table,
        known: Mapping[str, Any],
        functions: Sequence[Any],
        seeds: int | None = None,
    ) -> None:
        self.steps: dict[str, dict[str, Any]] = content["steps"]
        self.rows, self.tasks, self.seeds, self.functions, self.content = rows, tasks, seeds, functions, content
        self.listed = {f"{axis}s" for step in self.steps.values() for axis in step.get("each", "").split()}
        self.given = {name: value for name, value in content.items() if not isinstance(value, dict)}
        for name, value in self.given.items():
            if value is None:
                raise ValueError(f"the plan needs --set {name}=PATH")
            for path in value if isinstance(value, list) and name not in self.listed else ():
                _refuse_missing(path, f"--set {name}")
        found = {name: own for each in reversed(functions) for name, own in getattr(each, "PLACES", {}).items()}
        self.places = Places({**self.given, **content.get("texts", {}), "plan": content, **known}, found)
        # (step, places, axis -> value) of each job.
        self.instances = [
            (name, *own)
            for name, step in self.steps.items()
            for own in self._each(step.get("each", "").split(), self._rows(step), self.places, {})
            if "rows" not in step or self._rows(step)
        ]
        for name, places, _ in self.instances:
            for needed in places.words(self.steps[name].get("needs", "")):
                _refuse_missing(Path(needed), f"the step {name!r}")
        for number, (name, step) in enumerate(self.steps.items()):
            waits = f"{step.get('after', '')} {step.get('after-all', '')}".split()
            for other in {*waits} - {*[*self.steps][:number]}:
                raise ValueError(f"the plan's step {name!r} waits for {other!r}: list that step before it")

    def settings(self) -> dict[str, Any]:
        """Return the settings to compare with those of earlier commands, and under "runs" the axes of each job."""
        has_seeds = "seeds" in self.listed & self.given.keys()
        own = {name: value for name, value in self.given.items() if name not in {*self.listed, "report"}}
        tables = {name: value for name, value in self.content.items() if isinstance(value, dict)}
        return {
            **{name: _fingerprint(value) if isinstance(value, list) else str(value) for name, value in own.items()},
            **({"seeds": len(self._values("seed", {}, self.places))} if has_seeds else {}),
            "steps": {name: [step["run"], step.get("environment")] for name, step in self.steps.items()},
            "texts": self.content.get("texts", {}),
            "plan": {name: table for name, table in tables.items() if name not in {*self.listed, *_NOT_COMPARED}},
            **{
                kind: {
                    name: {field: _fingerprint(value) for field, value in fields.items() if field not in self.listed}
                    for name, fields in table.items()
                }
                for kind, table in (("rows", self.rows), ("tasks", self.tasks))
            },
            "runs": {self._marker(name, places): {"step": name, **axes} for name, places, axes in self.instances},
        }

    def jobs(self, *steps: str) -> list[Job]:
        """Return the jobs of the given steps (by default all steps), ordered by step."""
        made: list[tuple[str, Places, Job]] = []
        for name, places, _ in self.instances:
            step = self.steps[name]
            job = self._job(name, step, places)
            job.after = [
                group
                for key in ("after", "after-all")
                for earlier in step.get(key, "").split()
                if (group := self._matching(earlier, step, places, made, all_rows=key == "after-all"))
            ]
            made.append((name, places, job))
        return [job for name, _, job in made if name in (steps or self.steps)]

    def _matching(
        self, name: str, step: dict[str, Any], places: Places, made: list[tuple[str, Places, Job]], all_rows: bool
    ) -> list[Job]:
        """Return the jobs of an earlier step, of all rows if asked, with the values of common axes in ``places``."""
        earlier = self.steps[name]
        axes = set(step.get("each", "").split()) & set(earlier.get("each", "").split())
        if all_rows:
            axes.discard("row")
        elif "row" in places and places["row"] not in self._rows(earlier):
            return []
        return [job for each, own, job in made if each == name and all(own[axis] == places[axis] for axis in axes)]

    def _rows(self, step: dict[str, Any]) -> Table:
        wanted = step["rows"].split() if "rows" in step else self.rows
        return {name: fields for name, fields in self.rows.items() if name in wanted}

    def _each(
        self, axes: list[str], rows: Table, places: Places, known: dict[str, Any]
    ) -> Iterator[tuple[Places, dict[str, Any]]]:
        if not axes:
            yield places, known
            return
        axis, *rest = axes
        for value, fields in self._values(axis, rows, places).items():
            own = {**known, axis: value if axis in ("row", "task") else fields or value}
            yield from self._each(rest, rows, Places({**places, **fields, axis: value}, places.found), own)

    def _values(self, axis: str, rows: Table, places: Places) -> Table:
        if axis in ("row", "task"):
            return rows if axis == "row" else self.tasks
        listed = places[f"{axis}s"]
        if isinstance(listed, dict):
            return listed
        values = map(str, listed) if isinstance(listed, list) else str(listed).split()
        return dict.fromkeys([*values][: self.seeds if axis == "seed" else None], {})

    def _marker(self, name: str, places: Places) -> str:
        path = places["output"] / places.text(self.steps[name]["marker"])
        return str(path.relative_to(places["output"]))

    def _job(self, name: str, step: dict[str, Any], places: Places) -> Job:
        def function(kind: str) -> Any:
            return next(own for each in self.functions if (own := getattr(each, step[kind], None)) is not None)

        job = Job(
            places.text(step["name"]) if "name" in step else self._marker(name, places),
            # Not with_suffix: a task's name may have a dot.
            lambda: places["output"] / f"{self._marker(name, places)}.json",
            lambda: places.words(step["run"]),
            resumes=step.get("resumes", False),
            cost=float(places.text(step.get("cost", 1))),
            clears=[Path(path) for path in places.words(step.get("clears", ""))],
            environment=dict(word.split("=", 1) for word in places.words(step.get("environment", ""))),
            one_gpu=step.get("one-gpu", False),
        )
        if "result" in step:
            job.result = partial(function("result"), places)
        if "ended" in step:
            job.ended = partial(function("ended"), places)
        return job


def _refuse_missing(path: Path, needed_by: str) -> None:
    if not path.exists():
        raise ValueError(f"there is no {path}, which {needed_by} needs")


def _fingerprint(value: Any) -> Any:
    """Replace a path, or each path in a list, by the fingerprint of its content; return other values unchanged."""
    if isinstance(value, Path):
        return data_fingerprint(value) if value.is_dir() else sha256_of(value)
    return [_fingerprint(each) for each in value] if isinstance(value, list) else value
