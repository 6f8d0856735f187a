"""Sweeps: fine-tune checkpoints over the grids that recipes define, and keep the selected checkpoints."""

import argparse
import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
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
from fairseq_maelm.sweep.folder import DIVERGED, FINISHED, data_fingerprint, outcomes_of, run_name
from fairseq_maelm.sweep.log import best_validation
from fairseq_maelm.sweep.programs import Program

RANDOM, _BEST = "random", "checkpoint_best.pt"


class Model(NamedTuple):
    """A model to fine-tune."""

    checkpoint: Path
    random: bool  # whether to draw new weights, in the checkpoint's sizes
    encoder: Encoder


def choose(recipes: Sequence[FineTuningRecipe], large: bool, choices: Mapping[str, Sequence[Any]]) -> dict[str, Search]:
    """Return task -> option -> values to search, restricted to ``choices``; with ``large``, from ``search_large``.

    Raise a ValueError if a recipe has no ``search_large``, or lacks an option or all values of ``choices``.
    """
    searches: dict[str, Search] = {}
    for recipe in recipes:
        task, search = recipe.task, recipe.search_large if large else recipe.search
        if search is None:
            raise ValueError(f"the recipe {recipe.path} has no grid for large models (search_large): omit --large")
        searches[task] = {
            name: tuple(each for each in search[name] if each in choices.get(name, (each,))) for name in search
        }
        for name in choices:
            if name not in search:
                raise ValueError(f"--only {name}: the recipe of {task} searches only {', '.join(search)}")
            if not searches[task][name]:
                values = ", ".join(map(spelled, search[name]))
                raise ValueError(f"--only {name}: the recipe of {task} has none of these values, only {values}")
    for name, wanted in choices.items():
        found = {value for search in searches.values() for value in search[name]}
        if unknown := [spelled(value) for value in wanted if value not in found]:
            raise ValueError(f"--only {name}: no recipe has the value {', '.join(unknown)}")
    return searches


def place_of(task: str, model: str, setting: Mapping[str, Any], seed: int) -> str:
    """Return the path of a run's marker in the sweep's folder, without suffix."""
    folder = "-".join(f"{name}_{spelled(value)}" for name, value in sorted(setting.items()))
    folder = re.sub(r"[^\w.+-]", "_", folder)
    return f"runs/{task}/{model}/{folder}/seed_{seed}/run"


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
    settings: list[dict[str, Any]]  # option -> value
    counted: dict[str, Counted]  # name of a model -> examples and updates


class Sweep:
    """The runs of a sweep, from the arguments of ``maelm sweep``.

    The number of updates for each task is computed, with options, data and vocabulary checked, before anything is
    written or trained.
    """

    def __init__(self, args: argparse.Namespace, recipes: Sequence[FineTuningRecipe], machine: Machine) -> None:
        self.args, self.machine, self.models = args, machine, read_models(args.checkpoint)
        choices = {name: [value for other, own in args.only if other == name for value in own] for name, _ in args.only}
        searches = choose(recipes, args.large, choices)
        if problem := repeated_option(args.options):
            raise UsageError(f"--options: {problem}")
        self.tasks = {recipe.task: self._task(recipe, searches[recipe.task]) for recipe in recipes}
        # Path of the marker, without suffix -> axes. All seeds of a setting come before the next setting.
        self.runs: dict[str, dict[str, Any]] = {
            place_of(name, model, setting, seed): {"task": name, "setting": setting, "seed": seed, "model": model}
            for name, task in self.tasks.items()
            for setting in task.settings
            for seed in range(1, args.seeds + 1)
            for model in self.models
        }

    def _task(self, recipe: FineTuningRecipe, search: Search) -> Task:
        settings = [dict(zip(search, values)) for values in itertools.product(*search.values())]
        task = Task(recipe, self.args.data.resolve() / recipe.data, settings, {})
        for name, model in self.models.items():
            try:
                # An option that overrides a value of the grid may repeat the first one, but then not the last as well.
                for setting in (settings[-1], settings[0]):
                    options = self._options(recipe, model, setting, 1, 1)
                    words = self._words(options, task.data, Path("checkpoints"))[1:]
                    config, own = map(configuration_of, (words, words[: len(words) - len(self.args.options)]))
                    if option := overridden(own, config, (*RESERVED, *search)):
                        raise UsageError(f"--options: {option} is set by the sweep for each run: omit this option")
                task.counted[name] = count_updates(config, search["batch-size"], model.encoder)
            except (FileNotFoundError, ValueError) as error:
                raise type(error)(f"{recipe.task} ({recipe.path}): {error}") from error
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
        common = {"precision": self.machine.precision, "options": self.args.options}
        return {**common, "models": models, "tasks": tasks, "runs": self.runs}

    def examples(self) -> int:
        """Return the number of examples on which all runs train; those of each epoch are counted again."""
        runs = self.runs.values()
        return sum(
            int(run["setting"]["epochs"]) * self.tasks[run["task"]].counted[run["model"]].examples for run in runs
        )

    def programs(self) -> list[Program]:
        """Return the program of each run; if started again, it continues from the last finished epoch."""
        return [self._program(place, axes) for place, axes in self.runs.items()]

    def _program(self, place: str, axes: dict[str, Any]) -> Program:
        task, model, setting = self.tasks[axes["task"]], self.models[axes["model"]], axes["setting"]
        recipe, updates = task.recipe, task.counted[axes["model"]].updates_per_epoch[setting["batch-size"]]
        marker = self.args.output / f"{place}.json"
        options = self._options(recipe, model, setting, axes["seed"], updates)
        # Without the option, earlier commands' checkpoints stay as they are.
        keep, alike = self.args.keep_checkpoints, {name: axes[name] for name in ("task", "model")}
        return Program(
            run_name(axes),
            marker,
            self._words(options, task.data, marker.with_name("checkpoints")),
            lambda log: best_validation(log, recipe.metric, recipe.metrics, recipe.subsets),
            resumes=True,
            ended=lambda: tidy(self.args.output, keep or "none", **(alike if keep else axes)),
            environment={"OMP_NUM_THREADS": str(self.machine.threads)},
        )


def tidy(folder: Path, keep: str, **wanted: Any) -> None:
    """Delete checkpoints of runs that have ended, so that they do not fill the disk.

    Failed runs keep theirs to continue from; diverged runs do not, since their weights may not be finite. Of finished
    ones ``keep`` is "none", "best" (checkpoint_best.pt of the best run of each task and model) or "all". ``wanted``
    (axis -> value) selects runs.
    """
    outcomes = outcomes_of(folder, **wanted)
    finished = [each for each in reversed(outcomes) if each.state == FINISHED]
    ranked = sorted(finished, key=lambda each: float(each.result["score"]))
    # The best comes last, and of equal ones the first.
    best = {(each.axes["task"], each.axes["model"]): each.marker for each in ranked}.values()
    for each in outcomes:
        checkpoints = each.marker.with_name("checkpoints")
        if each.state == DIVERGED or (each.state == FINISHED and keep == "none"):
            shutil.rmtree(checkpoints, ignore_errors=True)
        elif each.state == FINISHED and keep == "best":
            for path in checkpoints.glob("*.pt"):
                if each.marker not in best or path.name != _BEST:
                    path.unlink()
