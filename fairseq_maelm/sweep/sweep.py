"""A sweep: from recipes and checkpoints to the results of all runs."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_maelm.files import sha256_of
from fairseq_maelm.finetuning.encoder import read_encoder
from fairseq_maelm.finetuning.recipe import Recipe, check_name
from fairseq_maelm.finetuning.rehearsal import Rehearsal, rehearse
from fairseq_maelm.sweep.checkpoints import CheckpointKeeper
from fairseq_maelm.sweep.grid import Run, choose, expand
from fairseq_maelm.sweep.jobs import Job, Process, read_json, run, unfinished
from fairseq_maelm.sweep.log import best_validation, is_divergence
from fairseq_maelm.sweep.runner import Runner, without_result
from fairseq_maelm.sweep.store import SweepFolder, data_fingerprint
from fairseq_maelm.sweep.training import Model, fine_tuning, run_options
from fairseq_maelm.train_command import Machine

__all__ = ["Plan", "begin_diverged_runs_anew", "make_plan", "read_models", "run_plan"]

logger = logging.getLogger(__name__)

RANDOM = "random"


@dataclass(frozen=True)
class Plan:
    """Everything that is to be done, checked.

    Attributes:
        recipes: task -> recipe.
        models: name -> model.
        data: the folder with the folders of all tasks.
        runs: in the order in which they are started.
        rehearsals: (task, model) -> what the task turned out to be.
        machine: where runs are computed.
        options: of fairseq-train, which win over all others.
        keep: which checkpoints are kept, one of ``checkpoints.KEEP``.
    """

    recipes: dict[str, Recipe]
    models: dict[str, Model]
    data: Path
    runs: list[Run]
    rehearsals: dict[tuple[str, str], Rehearsal]
    machine: Machine
    options: list[str]
    keep: str

    def process(self, run: Run, folder: SweepFolder, slot: str) -> Process:
        """The program of a run in a slot (a GPU, or "")."""
        recipe, model = self.recipes[run.task], self.models[run.model]
        updates = self.rehearsals[run.task, run.model].updates_per_epoch[run.setting["batch-size"]]
        data, save_dir = self.data / recipe.data, folder.checkpoints(run)
        options = run_options(recipe, model, run, updates, rehearsed=False)
        return fine_tuning(options, data, save_dir, self.machine, self.options, slot)

    def examples(self, run: Run) -> int:
        """Training examples that a run sees, each as often as it sees it."""
        return int(run.setting["epochs"]) * self.rehearsals[run.task, run.model].examples

    def jobs(self, folder: SweepFolder, ended: Callable[[Run], None] = lambda run: None) -> list[Job]:
        """The runs for the job runner; ``ended`` is called after each."""
        return [
            Job(
                str(each),
                folder.marker(each),
                partial(self.process, each, folder),
                partial(_result, self.recipes[each.task]),
                resumes=True,
                cost=self.examples(each),
                ended=partial(ended, each),
            )
            for each in self.runs
        ]

    def identity(self) -> dict[str, Any]:
        """What decides the results, for ``SweepFolder.open``."""
        sums = {model.checkpoint: sha256_of(model.checkpoint) for model in self.models.values()}
        tasks = {
            task: {
                "data": data_fingerprint(self.data / recipe.data),
                "metric": recipe.metric,
                "options": recipe.options,
            }
            for task, recipe in self.recipes.items()
        }
        models = {
            name: {"checkpoint": sums[model.checkpoint], "random": model.random} for name, model in self.models.items()
        }
        common = {"precision": self.machine.precision, "options": self.options}
        return {"common": common, "tasks": tasks, "models": models}

    def about(self) -> dict[str, Any]:
        """What reports want to know, for ``SweepFolder.open``."""
        tasks = {
            task: {"metric": recipe.metric, "figures": recipe.metrics, "subsets": recipe.subsets, "paper": recipe.paper}
            for task, recipe in self.recipes.items()
        }
        models = {
            name: {"checkpoint": str(model.checkpoint), "random": model.random} for name, model in self.models.items()
        }
        return {"tasks": tasks, "models": models}


def _result(recipe: Recipe, log: Path) -> dict[str, Any]:
    return best_validation(log, recipe.metric, recipe.metrics, recipe.subsets)


def read_models(named: Sequence[tuple[str, str]]) -> dict[str, Model]:
    """Read checkpoints.

    Args:
        named: names with a path each, or with "random:NAME" for random weights of the size of another, or with
            "random" for those of the first one that has a path.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a name is given twice or cannot stand in paths, "random" refers to nothing, or a file is no
            checkpoint of our model.
    """
    paths = {name: Path(value).resolve() for name, value in named if value.partition(":")[0] != RANDOM}
    if len({name for name, _ in named}) < len(named):
        raise ValueError(
            f"every --checkpoint needs a name of its own; given were {', '.join(name for name, _ in named)}"
        )
    read = {name: Model(name, path, False, read_encoder(path)) for name, path in paths.items()}
    models = {}
    for name, value in named:
        check_name(name, "the name of a checkpoint")
        if name in read:
            models[name] = read[name]
            continue
        other = value.partition(":")[2] or next(iter(read), "")
        if other not in read:
            raise ValueError(
                f"--checkpoint {name}={value} needs the size of a checkpoint: give one by its path, NAME=PATH, and for "
                "another than the first of these write random:NAME"
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
    """Expand the grid and try every task with every model, before anything is written or trained.

    Raises:
        FileNotFoundError: data are missing.
        ValueError: recipes, options, data, metrics or vocabularies do not fit; the message says which.
    """
    searches = choose(recipes, large, choices)
    data = data.resolve()
    rehearsals: dict[tuple[str, str], Rehearsal] = {}
    for recipe in recipes:
        first = next(expand(recipe.task, list(models), searches[recipe.task], seeds))
        tried: dict[str, Rehearsal] = {}
        for name, model in models.items():
            size = str(model.encoder.options)
            if size not in tried:
                logger.info("trying %s with the size of %s", recipe.task, name)
                folder = data / recipe.data
                trial = run_options(recipe, model, first, 1, rehearsed=True)
                process = fine_tuning(trial, folder, Path("checkpoints"), machine, options, "")
                tried[size] = _try(recipe, process, searches[recipe.task]["batch-size"])
            _check_vocabulary(recipe, model, tried[size])
            rehearsals[recipe.task, name] = tried[size]
    runs = [each for task, search in searches.items() for each in expand(task, list(models), search, seeds)]
    by_task = {recipe.task: recipe for recipe in recipes}
    return Plan(by_task, models, data, runs, rehearsals, machine, options, keep)


def _try(recipe: Recipe, process: Process, batch_sizes: tuple[int, ...]) -> Rehearsal:
    try:
        return rehearse(process.words, batch_sizes, recipe.metric, recipe.metrics)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{recipe.task} ({recipe.path}): {error}") from error


def _check_vocabulary(recipe: Recipe, model: Model, rehearsal: Rehearsal) -> None:
    if rehearsal.vocabulary != model.encoder.vocabulary:
        raise ValueError(
            f"{recipe.task}: its data were prepared with another vocabulary than the checkpoint {model.checkpoint} "
            "has: prepare them with the data folder that it was pretrained on"
        )


def run_plan(plan: Plan, output: Path, runner: Runner) -> dict[str, str]:
    """Do what is not done yet.

    Args:
        plan: of ``make_plan``.
        output: the sweep's folder.
        runner: where the runs go on, and whether those that failed or diverged earlier are tried again.

    Returns:
        name of each run without a result -> reason.

    Raises:
        ValueError: the folder is in use, holds something else, or a sweep with other settings.
    """
    folder = SweepFolder(output)
    with folder.open(plan.identity(), plan.about(), plan.runs):
        keeper = CheckpointKeeper(folder, plan.keep)
        keeper.tidy(folder.runs())
        jobs = plan.jobs(folder, keeper.ended)
        if runner.retry_failed:
            begin_diverged_runs_anew(folder, plan.runs)
        waiting = len(unfinished(jobs, runner.retry_failed))
        logger.info("%d runs, %d of them to do; logs in %s", len(jobs), waiting, output / "runs")
        run(jobs, runner.slots, runner.launcher, runner.retry_failed)
        return without_result(jobs)


def begin_diverged_runs_anew(folder: SweepFolder, runs: Sequence[Run]) -> None:
    """A checkpoint of weights that are no numbers is no place to go on from."""
    for each in runs:
        result = read_json(folder.marker(each))
        if result is not None and is_divergence(str(result.get("failed", ""))):
            shutil.rmtree(folder.marker(each).parent)
