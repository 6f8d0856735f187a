"""The runs of a sweep: from recipes and checkpoints to the results."""

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.finetuning.recipe import Recipe, check_name
from fairseq_maelm.finetuning.train_command import (
    FROM_CHECKPOINT,
    Counted,
    Encoder,
    count_updates,
    read_encoder,
    run_options,
    train_words,
)
from fairseq_maelm.options import UsageError
from fairseq_maelm.studies.engine import Job, Process, is_finished, read_json
from fairseq_maelm.studies.folder import data_fingerprint, study_folder
from fairseq_maelm.studies.grid import Run, choose, expand, read_runs
from fairseq_maelm.studies.log import best_validation, is_divergence
from fairseq_maelm.studies.options import Runner, without_result
from fairseq_maelm.training.options import Machine

logger = logging.getLogger(__name__)

RANDOM = "random"
_BEST = "checkpoint_best.pt"


class Model(NamedTuple):
    """A model to fine-tune."""

    name: str  # in tables
    checkpoint: Path
    random: bool  # whether to use random weights of the checkpoint's sizes
    encoder: Encoder

    @property
    def positions(self) -> int:
        """The largest number of tokens."""
        return int(self.encoder.options["max-positions"])


@dataclass(frozen=True)
class Plan:
    """The checked plan of a sweep."""

    recipes: dict[str, Recipe]  # by task
    models: dict[str, Model]  # by name
    data: Path  # folder that contains the tasks' folders
    runs: list[Run]  # in their order
    counted: dict[tuple[str, int], Counted]  # by task and the encoder's positions
    machine: Machine  # of each run
    options: list[str]  # of fairseq-train, which override all others
    keep: str  # checkpoints to keep, one of ``grid.KEEP``

    def process(self, run: Run, folder: Path, slot: str) -> Process:
        """Return the program of a run in a slot (a GPU, or ""), which continues from its last finished epoch."""
        recipe, model = self.recipes[run.task], self.models[run.model]
        updates = self.counted[run.task, model.positions].updates_per_epoch[run.setting["batch-size"]]
        words = _options(recipe, model, run, updates)
        more = train_words(words, self.data / recipe.data, run.checkpoints(folder), self.machine)
        return Process([*more, *self.options], {"OMP_NUM_THREADS": str(self.machine.threads)}).on(slot)

    def examples(self, run: Run) -> int:
        """Return the number of training examples of a run, counted in each epoch."""
        return int(run.setting["epochs"]) * self.counted[run.task, self.models[run.model].positions].examples

    def jobs(self, folder: Path) -> list[Job]:
        """Return the jobs of all runs."""
        return [
            Job(
                str(each),
                each.marker(folder),
                partial(self.process, each, folder),
                partial(_result, self.recipes[each.task]),
                resumes=True,
                cost=self.examples(each),
                ended=partial(tidy, folder, each, self.runs, self.keep),
            )
            for each in self.runs
        ]

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the results."""
        sums = {model.checkpoint: sha256_of(model.checkpoint) for model in self.models.values()}
        prints = {task: data_fingerprint(self.data / recipe.data) for task, recipe in self.recipes.items()}
        tasks = {
            task: {"data": prints[task], "metric": recipe.metric, "options": recipe.options}
            for task, recipe in self.recipes.items()
        }
        models = {
            name: {"checkpoint": sums[model.checkpoint], "random": model.random} for name, model in self.models.items()
        }
        common = {"precision": self.machine.precision, "options": self.options}
        runs = {str(run.folder): run._asdict() for run in self.runs}
        return {"common": common, "tasks": tasks, "models": models, "runs": runs}

    def about(self) -> dict[str, Any]:
        """Return facts for reports."""
        tasks = {
            task: {"metric": recipe.metric, "figures": recipe.metrics, "subsets": recipe.subsets, "paper": recipe.paper}
            for task, recipe in self.recipes.items()
        }
        models = {
            name: {"checkpoint": str(model.checkpoint), "random": model.random} for name, model in self.models.items()
        }
        return {"tasks": tasks, "models": models}


def _options(recipe: Recipe, model: Model, run: Run, updates_per_epoch: int) -> dict[str, Any]:
    """Return the options of a run without folders and machine."""
    sizes = {**model.encoder.options, **model.encoder.drawn} if model.random else FROM_CHECKPOINT
    options = run_options(recipe, model.encoder, run.setting, updates_per_epoch, sizes)
    start = {} if model.random else {"finetune-from-model": model.checkpoint}
    return {**options, **start, "seed": run.seed}


def _result(recipe: Recipe, log: Path) -> dict[str, Any]:
    return best_validation(log, recipe.metric, recipe.metrics, recipe.subsets)


def read_models(named: Sequence[tuple[str, str]]) -> dict[str, Model]:
    """Read named checkpoints.

    Instead of a path, "random:NAME" means random weights in the size of NAME, and "random" in the size of the first
    checkpoint that has a path.
    """
    if len({name for name, _ in named}) < len(named):
        names = ", ".join(name for name, _ in named)
        raise UsageError(f"two checkpoints have the same name: give each of {names} a different one")
    read = {}
    for name, value in named:
        if value.partition(":")[0] != RANDOM:
            try:
                path = find_checkpoint(Path(value)).resolve()
            except FileNotFoundError as error:
                raise UsageError(f"--checkpoint {name}: {error}") from error
            read[name] = Model(name, path, False, read_encoder(path))
    models = {}
    for name, value in named:
        check_name(name, "the name of a checkpoint")
        if name in read:
            models[name] = read[name]
            continue
        other = value.partition(":")[2] or next(iter(read), "")
        if other not in read:
            raise UsageError(
                f"--checkpoint {name}={value} needs a checkpoint for its size: give one as NAME=PATH, and write "
                "random:NAME unless it is the first"
            )
        models[name] = read[other]._replace(name=name, random=True)
    return models


def make_plan(
    recipes: Sequence[Recipe],
    data: Path,
    models: dict[str, Model],
    seeds: int,
    choices: dict[str, tuple[Any, ...]],
    large: bool,
    machine: Machine,
    options: list[str],
    keep: str,
) -> Plan:
    """Expand the grid, and count the updates of each task before anything is written or trained.

    Raises:
        FileNotFoundError: data are missing.
        ValueError: options or data are wrong.
    """
    searches = choose(recipes, large, choices)
    data = data.resolve()
    counted: dict[tuple[str, int], Counted] = {}
    for recipe, (positions, model) in product(recipes, {each.positions: each for each in models.values()}.items()):
        search = searches[recipe.task]
        trial = _options(recipe, model, next(expand(recipe.task, list(models), search, seeds)), 1)
        words = [*train_words(trial, data / recipe.data, Path("checkpoints"), machine), *options]
        try:
            counted[recipe.task, positions] = count_updates(words, search["batch-size"], positions)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{recipe.task} ({recipe.path}): {error}") from error
    runs = [each for task, search in searches.items() for each in expand(task, list(models), search, seeds)]
    by_task = {recipe.task: recipe for recipe in recipes}
    return Plan(by_task, models, data, runs, counted, machine, options, keep)


def run_plan(plan: Plan, output: Path, runner: Runner) -> dict[str, str]:
    """Run all unfinished runs of a plan, and return name -> reason for each run without a result."""
    with study_folder(output, plan.identity(), plan.about()):
        if runner.retry_failed:
            _forget_diverged_runs(output, plan.runs)
        for each in read_runs(output):
            tidy(output, each, plan.runs, plan.keep)
        jobs = plan.jobs(output)
        logger.info("%d runs; logs in %s", len(jobs), output / "runs")
        runner.run(jobs)
        return without_result(jobs)


def _forget_diverged_runs(folder: Path, runs: Sequence[Run]) -> None:
    """Remove diverged runs, since their checkpoints may have weights that are not finite."""
    for each in runs:
        result = read_json(each.marker(folder))
        if result is not None and is_divergence(str(result.get("failed", ""))):
            shutil.rmtree(each.marker(folder).parent)


def tidy(folder: Path, run: Run, runs: Iterable[Run], keep: str) -> None:
    """Delete checkpoints of a run that has ended, which would fill the disk.

    Failed runs keep their checkpoints, from which they can continue; diverged runs do not.

    Args:
        folder: the sweep's folder.
        run: the run.
        runs: all runs.
        keep: checkpoints of finished runs to keep: none ("none"), for each task and model the checkpoint_best.pt of the
            run with the best score ("best"), or all ("all").
    """
    result = read_json(run.marker(folder))
    if result is None or ("failed" in result and not is_divergence(result["failed"])):
        return
    if "failed" in result or keep == "none":
        shutil.rmtree(run.checkpoints(folder), ignore_errors=True)
    elif keep == "best":
        alike = [each for each in runs if (each.task, each.model) == (run.task, run.model)]
        finished = [each for each in alike if is_finished(each.marker(folder))]
        best = max(finished, key=lambda each: (read_json(each.marker(folder)) or {})["score"])
        for each in finished:
            for path in each.checkpoints(folder).glob("*"):
                if each != best or path.name != _BEST:
                    path.unlink()
