"""Sweeps: fine-tune checkpoints over the grids that recipes define, and keep the selected checkpoints."""

import argparse
import itertools
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.finetuning.recipe import RESERVED, Recipe, Search, check_name
from fairseq_maelm.finetuning.train_command import (
    FROM_CHECKPOINT,
    Counted,
    Encoder,
    count_updates,
    read_encoder,
    run_options,
    train_words,
)
from fairseq_maelm.options import UsageError, refuse_repeated
from fairseq_maelm.sweep.folder import DIVERGED, FINISHED, outcomes_of
from fairseq_maelm.sweep.log import best_validation
from fairseq_maelm.sweep.plan import Places, Steps
from fairseq_maelm.training.options import Machine, configuration_of, overridden, spelled

RANDOM, _BEST = "random", "checkpoint_best.pt"
# The plan's steps, ordered so that all seeds of a setting come before the next setting.
_STEPS = {
    "fine-tuning": {
        "each": "task setting seed row",
        "name": "{task}, {row}, {described}, seed {seed}",
        # The folder name ``{setting}`` does not depend on the order of the options.
        "marker": "runs/{task}/{row}/{setting}/seed_{seed}/run",
        "environment": "OMP_NUM_THREADS={threads}",
        "run": "{command}",
        "resumes": True,
        "cost": "{examples}",
        "result": "result",
        "ended": "tidy",
    }
}


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


def choose(recipes: Sequence[Recipe], large: bool, choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Search]:
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


class Sweep:
    """The steps of a sweep, built from the arguments of ``maelm sweep``, and the functions that the steps call.

    The number of updates for each task is computed, with options, data and vocabulary checked, before anything is
    written or trained.

    Raises:
        FileNotFoundError: data is missing.
        ValueError: options or data are invalid.
    """

    def __init__(self, args: argparse.Namespace, recipes: Sequence[Recipe], machine: Machine) -> None:
        self.args, self.machine, self.models = args, machine, read_models(args.checkpoint)
        self.recipes = {recipe.task: recipe for recipe in recipes}
        choices: dict[str, tuple[Any, ...]] = {}
        for name, values in args.only:
            choices[name] = (*choices.get(name, ()), *values)
        tasks, self.counted = {}, dict[tuple[str, Any], Counted]()
        searches = choose(recipes, args.large, choices)
        refuse_searched(args.options, searches)
        for task, search in searches.items():
            recipe, settings = self.recipes[task], settings_of(search)
            tasks[task] = {
                "data": args.data.resolve() / recipe.data, "metric": recipe.metric, "metrics": recipe.metrics,
                "options": recipe.options, "subsets": recipe.subsets, "paper": recipe.paper, "settings": settings,
            }  # fmt: skip
            for key, model in {model.kind: model for model in self.models.values()}.items():
                options = self._options(recipe, model, next(iter(settings.values())), 1, 1)
                words = self._words(options, tasks[task]["data"], Path("checkpoints"))
                try:
                    config = configuration_of(words[1:])
                    self.counted[task, key] = count_updates(config, search["batch-size"], model.encoder)
                except (FileNotFoundError, ValueError) as error:
                    raise type(error)(f"{task} ({recipe.path}): {error}") from error
                own = configuration_of(words[1 : -len(args.options)]) if args.options else config
                if name := overridden(own, config, RESERVED):
                    raise UsageError(f"--options: {name} is set by the sweep for each run: omit this option")
        common = {"precision": machine.precision, "options": args.options}
        content = {"steps": _STEPS, "seeds": " ".join(str(seed + 1) for seed in range(args.seeds)), "common": common}
        rows = {name: {"checkpoint": each.checkpoint, "random": each.random} for name, each in self.models.items()}
        self.steps = Steps(content, rows, tasks, {"output": args.output, "threads": machine.threads}, [self])

    def _words(self, options: Mapping[str, Any], data: Path, save_dir: Path) -> list[str]:
        return [*train_words(options, data, save_dir, self.machine), *self.args.options]

    def _options(
        self, recipe: Recipe, model: Model, setting: Mapping[str, Any], seed: int, updates_per_epoch: int
    ) -> dict[str, Any]:
        """Return the options of a run, except those for folders and the machine."""
        sizes = {**model.encoder.options, **model.encoder.drawn} if model.random else FROM_CHECKPOINT
        options = run_options(recipe, model.encoder, setting, updates_per_epoch, sizes)
        start = {} if model.random else {"finetune-from-model": model.checkpoint}
        return {**options, **start, "seed": seed}

    def prepare(self, markers: Collection[Path] = ()) -> None:
        """Delete earlier checkpoints that need not be kept, and the diverged runs among those with these markers."""
        for each in outcomes_of(self.args.output, *_STEPS):
            # The checkpoints may have weights that are not finite.
            if each.state == DIVERGED and each.marker in markers:
                shutil.rmtree(each.marker.parent)
        if self.args.keep_checkpoints is not None:
            for task, row in {(each.axes["task"], each.axes["row"]) for each in outcomes_of(self.args.output, *_STEPS)}:
                tidy(self.args.output, self.args.keep_checkpoints, task, row)

    # Functions of the plan

    @property
    def PLACES(self) -> dict[str, Any]:
        """Return placeholder -> function that computes the value; see ``Places``."""
        return {
            "described": lambda places: described(self._of(places)[0]),
            "command": self._command,
            # Examples are counted again in each epoch.
            "examples": lambda places: int(self._of(places)[0]["epochs"]) * self._of(places)[3].examples,
        }

    def _of(self, places: Places) -> tuple[dict[str, Any], Recipe, Model, Counted]:
        recipe, model = self.recipes[places["task"]], self.models[places["row"]]
        return places["settings"][places["setting"]], recipe, model, self.counted[recipe.task, model.kind]

    def _command(self, places: Places) -> list[str]:
        """Return the command of a run; if run again, it continues from the last finished epoch."""
        setting, recipe, model, counted = self._of(places)
        updates = counted.updates_per_epoch[setting["batch-size"]]
        options = self._options(recipe, model, setting, int(places["seed"]), updates)
        return self._words(options, places["data"], self._save_dir(places))

    def _save_dir(self, places: Places) -> Path:
        return Path(places.text("{output}/runs/{task}/{row}/{setting}/seed_{seed}/checkpoints"))

    def result(self, places: Places, log: Path) -> dict[str, Any]:
        """Return the best validation of a run."""
        recipe = self.recipes[places["task"]]
        return best_validation(log, recipe.metric, recipe.metrics, recipe.subsets)

    def tidy(self, places: Places) -> None:
        """Delete the checkpoints of a task and model that need not be kept."""
        keep, only = self.args.keep_checkpoints, self._save_dir(places).parent
        tidy(self.args.output, keep or "none", places["task"], places["row"], None if keep else only)


def tidy(folder: Path, keep: str, task: str, row: str, only: Path | None = None) -> None:
    """Delete checkpoints of runs that have ended, so that they do not fill the disk.

    Failed runs keep their checkpoints to continue from; diverged runs do not.

    Args:
        folder: the sweep's folder.
        keep: checkpoints of finished runs to keep: none ("none"), the checkpoint_best.pt of the run with the best score
            ("best"), or all ("all").
        task: the runs' task.
        row: the runs' model.
        only: folder of a run; the checkpoints of all others stay as they are. None for all runs.
    """
    alike = outcomes_of(folder, *_STEPS, task=task, row=row)
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
