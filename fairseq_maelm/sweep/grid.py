"""Sweeps: fine-tune checkpoints over the grids that recipes define, and keep the selected checkpoints."""

import argparse
import itertools
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.launch.command_line import configuration_of, overridden, repeated_option, spelled
from fairseq_maelm.launch.finetuning import (
    FROM_CHECKPOINT,
    Counted,
    Encoder,
    count_updates,
    read_encoder,
    run_options,
    train_words,
)
from fairseq_maelm.launch.machine import Machine
from fairseq_maelm.launch.recipes import RESERVED, FineTuningRecipe, Search, check_name
from fairseq_maelm.options import UsageError, refuse_repeated
from fairseq_maelm.sweep.folder import DIVERGED, FINISHED, data_fingerprint, outcomes_of
from fairseq_maelm.sweep.jobs import Job
from fairseq_maelm.sweep.log import best_validation

RANDOM, _BEST = "random", "checkpoint_best.pt"


class Model(NamedTuple):
    """A model to fine-tune."""

    checkpoint: Path
    random: bool  # whether to draw new weights, in the checkpoint's sizes
    encoder: Encoder

    @property
    def kind(self) -> tuple[int, int | None]:
        """The properties that decide how a task's data are read: positions, and the vocabulary of weights to load."""
        return self.encoder.positions, None if self.random else self.encoder.vocabulary


def described(setting: Mapping[str, Any]) -> str:
    """Return the text of a setting for tables and messages."""
    return ", ".join(f"{name} {spelled(value)}" for name, value in setting.items())


def choose(
    recipes: Sequence[FineTuningRecipe], large: bool, choices: Mapping[str, tuple[Any, ...]]
) -> dict[str, Search]:
    """Return task -> option -> values to search, restricted to ``choices``; with ``large``, from ``search_large``.

    Raises:
        ValueError: a recipe has no ``search_large``, does not search an option in ``choices``, or has none of the
            values chosen for it.
    """
    searches: dict[str, Search] = {}
    for recipe in recipes:
        search = recipe.search_large if large else recipe.search
        if search is None:
            raise ValueError(f"the recipe {recipe.path} has no grid for large models (search_large): omit --large")
        searches[recipe.task] = dict(search)
    for name, wanted in choices.items():
        for task, search in searches.items():
            if name not in search:
                raise ValueError(f"--only {name}: the recipe of {task} searches only {', '.join(search)}")
            kept = tuple(value for value in search[name] if value in wanted)
            if not kept:
                values = ", ".join(map(spelled, search[name]))
                raise ValueError(f"--only {name}: the recipe of {task} has none of these values, only {values}")
            search[name] = kept
        found = {value for search in searches.values() for value in search[name]}
        if unknown := [spelled(value) for value in wanted if value not in found]:
            raise ValueError(f"--only {name}: no recipe has the value {', '.join(unknown)}")
    return searches


def refuse_searched(options: Sequence[str], searches: Mapping[str, Search]) -> None:
    """Raise a UsageError if options of fairseq-train for all runs have a name of a grid, whose values they override."""
    given = {word.partition("=")[0].removeprefix("--") for word in options if word.startswith("--")}
    for name in (name for search in searches.values() for name in search if name in given):
        raise UsageError(
            f"--options: --{name} would override every value of {name} in the grid: choose a part of the grid with "
            "--only, or change the recipe"
        )


def settings_of(search: Search) -> dict[str, dict[str, Any]]:
    """Return all settings of a grid: folder name -> option -> value."""
    points = [dict(zip(search, values)) for values in itertools.product(*search.values())]
    names = ["-".join(f"{name}_{spelled(value)}" for name, value in sorted(point.items())) for point in points]
    return {re.sub(r"[^\w.+-]", "_", name): point for name, point in zip(names, points)}


def read_models(named: Sequence[tuple[str, str]]) -> dict[str, Model]:
    """Read named checkpoints.

    Instead of a path, "random:NAME" means a model with random weights and the sizes of the checkpoint NAME; "random"
    takes the sizes of the first checkpoint that has a path.
    """
    refuse_repeated([name for name, _ in named], "checkpoint")
    read = {}
    for name, value in named:
        check_name(name, "the name of a checkpoint")
        if value.partition(":")[0] != RANDOM:
            try:
                path = find_checkpoint(Path(value)).resolve()
            except FileNotFoundError as error:
                raise UsageError(f"--checkpoint {name}: {error}") from error
            read[name] = Model(path, False, read_encoder(path))
    models = {}
    for name, value in named:
        other = name if name in read else value.partition(":")[2] or next(iter(read), "")
        if other not in read:
            raise UsageError(
                f"--checkpoint {name}={value} takes its size from another checkpoint: add --checkpoint NAME=PATH, and "
                "write random:NAME"
            )
        models[name] = read[other]._replace(random=name not in read)
    return models


class Task(NamedTuple):
    """A task to fine-tune on."""

    recipe: FineTuningRecipe
    data: Path
    settings: dict[str, dict[str, Any]]  # folder name -> option -> value
    counted: dict[tuple[int, int | None], Counted]  # kind of model -> examples and updates


class Run(NamedTuple):
    """A fine-tuning: a task, one of its settings, a seed and a model, by their names."""

    task: str
    setting: str
    seed: int
    model: str

    @property
    def marker(self) -> str:
        """The path of the marker in the sweep's folder, without suffix."""
        return f"runs/{self.task}/{self.model}/{self.setting}/seed_{self.seed}/run"


class Sweep:
    """The runs of a sweep, from the arguments of ``maelm sweep``.

    The number of updates for each task is computed, with options, data and vocabulary checked, before anything is
    written or trained.

    Raises:
        FileNotFoundError: data is missing.
        ValueError: options or data are invalid.
    """

    def __init__(self, args: argparse.Namespace, recipes: Sequence[FineTuningRecipe], machine: Machine) -> None:
        self.args, self.machine, self.models = args, machine, read_models(args.checkpoint)
        choices: dict[str, tuple[Any, ...]] = {}
        for name, values in args.only:
            choices[name] = (*choices.get(name, ()), *values)
        searches = choose(recipes, args.large, choices)
        refuse_searched(args.options, searches)
        if problem := repeated_option(args.options):
            raise UsageError(f"--options: {problem}")
        self.tasks = {recipe.task: self._task(recipe, searches[recipe.task]) for recipe in recipes}
        # All seeds of a setting come before the next setting.
        self.runs = [
            Run(name, setting, seed + 1, model)
            for name, task in self.tasks.items()
            for setting in task.settings
            for seed in range(args.seeds)
            for model in self.models
        ]

    def _task(self, recipe: FineTuningRecipe, search: Search) -> Task:
        task = Task(recipe, self.args.data.resolve() / recipe.data, settings_of(search), {})
        for kind, model in {model.kind: model for model in self.models.values()}.items():
            options = self._options(recipe, model, next(iter(task.settings.values())), 1, 1)
            words = self._words(options, task.data, Path("checkpoints"))
            try:
                config = configuration_of(words[1:])
                task.counted[kind] = count_updates(config, search["batch-size"], model.encoder)
            except (FileNotFoundError, ValueError) as error:
                raise type(error)(f"{recipe.task} ({recipe.path}): {error}") from error
            own = configuration_of(words[1 : -len(self.args.options)]) if self.args.options else config
            if name := overridden(own, config, RESERVED):
                raise UsageError(f"--options: {name} is set by the sweep for each run: omit this option")
        return task

    def _words(self, options: Mapping[str, Any], data: Path, save_dir: Path) -> list[str]:
        return [*train_words(options, data, save_dir, self.machine), *self.args.options]

    def _options(
        self, recipe: FineTuningRecipe, model: Model, setting: Mapping[str, Any], seed: int, updates_per_epoch: int
    ) -> dict[str, Any]:
        """Return the options of a run, except those for folders and the machine."""
        sizes = {**model.encoder.options, **model.encoder.drawn} if model.random else FROM_CHECKPOINT
        options = run_options(recipe, model.encoder, setting, updates_per_epoch, sizes)
        start = {} if model.random else {"finetune-from-model": model.checkpoint}
        return {**options, **start, "seed": seed}

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide the results, and the axes of each run, for ``sweep_folder``."""
        models = {
            name: {"checkpoint": sha256_of(each.checkpoint), "random": each.random}
            for name, each in self.models.items()
        }
        tasks = {
            name: {
                "data": data_fingerprint(task.data), "metric": task.recipe.metric, "metrics": task.recipe.metrics,
                "options": task.recipe.options, "subsets": task.recipe.subsets, "paper": task.recipe.paper,
            }
            for name, task in self.tasks.items()
        }  # fmt: skip
        runs = {
            each.marker: {**each._asdict(), "setting": self.tasks[each.task].settings[each.setting]}
            for each in self.runs
        }
        common = {"precision": self.machine.precision, "options": self.args.options, "seeds": self.args.seeds}
        return {**common, "models": models, "tasks": tasks, "runs": runs}

    def jobs(self) -> list[Job]:
        """Return the job of each run; if run again, it continues from the last finished epoch."""
        return [self._job(run) for run in self.runs]

    def _job(self, run: Run) -> Job:
        task, model = self.tasks[run.task], self.models[run.model]
        setting, counted, recipe = task.settings[run.setting], task.counted[model.kind], task.recipe
        updates = counted.updates_per_epoch[setting["batch-size"]]
        marker = self.args.output / f"{run.marker}.json"
        options = self._options(recipe, model, setting, run.seed, updates)
        return Job(
            f"{run.task}, {run.model}, {described(setting)}, seed {run.seed}",
            marker,
            self._words(options, task.data, marker.with_name("checkpoints")),
            lambda log: best_validation(log, recipe.metric, recipe.metrics, recipe.subsets),
            resumes=True,
            # Examples are counted again in each epoch.
            cost=int(setting["epochs"]) * counted.examples,
            ended=lambda: self._tidy(run.task, run.model, marker.parent),
            environment={"OMP_NUM_THREADS": str(self.machine.threads)},
        )

    def _tidy(self, task: str, model: str, only: Path) -> None:
        keep = self.args.keep_checkpoints
        tidy(self.args.output, keep or "none", task, model, None if keep else only)

    def prepare(self, markers: Collection[Path] = ()) -> None:
        """Delete earlier checkpoints that need not be kept, and the diverged runs among those with these markers."""
        outcomes = outcomes_of(self.args.output)
        for each in outcomes:
            # The checkpoints may have weights that are not finite.
            if each.state == DIVERGED and each.marker in markers:
                shutil.rmtree(each.marker.parent)
        if self.args.keep_checkpoints is not None:
            for task, model in {(each.axes["task"], each.axes["model"]) for each in outcomes}:
                tidy(self.args.output, self.args.keep_checkpoints, task, model)


def tidy(folder: Path, keep: str, task: str, model: str, only: Path | None = None) -> None:
    """Delete checkpoints of runs that have ended, so that they do not fill the disk.

    Failed runs keep their checkpoints to continue from; diverged runs do not.

    Args:
        folder: the sweep's folder.
        keep: checkpoints of finished runs to keep: none ("none"), the checkpoint_best.pt of the run with the best score
            ("best"), or all ("all").
        task: the runs' task.
        model: the runs' model.
        only: folder of a run; the checkpoints of all others stay as they are. None for all runs.
    """
    alike = outcomes_of(folder, task=task, model=model)
    alike = [each for each in alike if only is None or each.marker.parent == only]
    finished = [each for each in alike if each.state == FINISHED]
    best = max(finished, key=lambda each: each.result["score"], default=None)
    for each in alike:
        checkpoints = each.marker.with_name("checkpoints")
        if each.state == DIVERGED or (each.state == FINISHED and keep == "none"):
            shutil.rmtree(checkpoints, ignore_errors=True)
        elif each.state == FINISHED and keep == "best":
            for path in checkpoints.glob("*.pt"):
                if each is not best or path.name != _BEST:
                    path.unlink()
