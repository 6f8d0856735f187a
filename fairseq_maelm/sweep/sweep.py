"""A sweep: from recipes and checkpoints to the results of all runs."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.arguments import UsageError, find_checkpoint
from fairseq_maelm.files import sha256_of
from fairseq_maelm.finetuning.encoder import Encoder, read_encoder
from fairseq_maelm.finetuning.recipe import Recipe, check_name
from fairseq_maelm.finetuning.rehearsal import Rehearsal, rehearse
from fairseq_maelm.finetuning.training import FROM_CHECKPOINT, run_options, train_words
from fairseq_maelm.sweep.grid import Run, choose, expand
from fairseq_maelm.sweep.jobs import Job, Process, read_json, run, unfinished, visible
from fairseq_maelm.sweep.log import best_validation, is_divergence
from fairseq_maelm.sweep.runner import Runner, without_result
from fairseq_maelm.sweep.store import CheckpointKeeper, SweepFolder, data_fingerprint
from fairseq_maelm.train_command import Machine

logger = logging.getLogger(__name__)

RANDOM = "random"


class Model(NamedTuple):
    """A checkpoint to fine-tune, under its name in tables; of a random one the sizes are taken and weights drawn."""

    name: str
    checkpoint: Path
    random: bool
    encoder: Encoder


@dataclass(frozen=True)
class Plan:
    """Everything that is to be done, checked.

    Attributes:
        recipes: by task.
        models: by name.
        data: the folder with the folders of all tasks.
        runs: in the order in which they are started.
        rehearsals: by task and model.
        machine: of each run.
        options: of fairseq-train, which win over all others.
        keep: the checkpoints to keep, one of ``store.KEEP``.
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
        """Return the program of a run in a slot (a GPU, or ""); it goes on from the last epoch that it finished."""
        recipe, model = self.recipes[run.task], self.models[run.model]
        updates = self.rehearsals[run.task, run.model].updates_per_epoch[run.setting["batch-size"]]
        words = _words(recipe, model, run, updates, model.random)
        more = train_words(words, self.data / recipe.data, folder.checkpoints(run), self.machine)
        return Process([*more, *self.options], {"OMP_NUM_THREADS": str(self.machine.threads), **visible(slot)})

    def examples(self, run: Run) -> int:
        """Return the training examples that a run sees, each as often as it sees it."""
        return int(run.setting["epochs"]) * self.rehearsals[run.task, run.model].examples

    def jobs(self, folder: SweepFolder, ended: Callable[[Run], None] = lambda run: None) -> list[Job]:
        """Return the runs for the job runner; ``ended`` is called after each."""
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
        """Return what decides the results, for ``SweepFolder.open``."""
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
        """Return what reports need, for ``SweepFolder.open``."""
        tasks = {
            task: {"metric": recipe.metric, "figures": recipe.metrics, "subsets": recipe.subsets, "paper": recipe.paper}
            for task, recipe in self.recipes.items()
        }
        models = {
            name: {"checkpoint": str(model.checkpoint), "random": model.random} for name, model in self.models.items()
        }
        return {"tasks": tasks, "models": models}


def _words(recipe: Recipe, model: Model, run: Run, updates_per_epoch: int, names_sizes: bool) -> dict[str, Any]:
    """Return the options of a run, apart from folders and machine; ``names_sizes``: the sizes are among them."""
    sizes: Mapping[str, Any] = FROM_CHECKPOINT
    if names_sizes:
        sizes = {**model.encoder.options, **model.encoder.drawn}
    options = run_options(recipe, model.encoder, dict(run.setting.values), updates_per_epoch, sizes)
    start = {} if model.random else {"finetune-from-model": model.checkpoint}
    return {**options, **start, "seed": run.seed}


def _result(recipe: Recipe, log: Path) -> dict[str, Any]:
    return best_validation(log, recipe.metric, recipe.metrics, recipe.subsets)


def read_models(named: Sequence[tuple[str, str]]) -> dict[str, Model]:
    """Read checkpoints under their names.

    In place of a path, "random:NAME" stands for random weights of the size of another, and "random" for those of the
    first one that has a path.
    """
    if len({name for name, _ in named}) < len(named):
        raise UsageError(
            f"every --checkpoint needs a name of its own; given were {', '.join(name for name, _ in named)}"
        )
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
                trial = _words(recipe, model, first, 1, names_sizes=True)
                words = [*train_words(trial, data / recipe.data, Path("checkpoints"), machine), *options]
                try:
                    tried[size] = rehearse(words, searches[recipe.task]["batch-size"], recipe.metric, recipe.metrics)
                except (FileNotFoundError, ValueError) as error:
                    raise type(error)(f"{recipe.task} ({recipe.path}): {error}") from error
            if tried[size].vocabulary != model.encoder.vocabulary:
                raise ValueError(
                    f"{recipe.task}: its data were prepared with another vocabulary than the checkpoint "
                    f"{model.checkpoint} has: prepare them with the data folder that it was pretrained on"
                )
            rehearsals[recipe.task, name] = tried[size]
    runs = [each for task, search in searches.items() for each in expand(task, list(models), search, seeds)]
    by_task = {recipe.task: recipe for recipe in recipes}
    return Plan(by_task, models, data, runs, rehearsals, machine, options, keep)


def run_plan(plan: Plan, output: Path, runner: Runner) -> dict[str, str]:
    """Do what is not done yet in the sweep's folder; return the name of each run without a result -> reason."""
    folder = SweepFolder(output)
    with folder.open(plan.identity(), plan.about(), plan.runs):
        keeper = CheckpointKeeper(folder, plan.keep)
        keeper.tidy(folder.runs())
        jobs = plan.jobs(folder, keeper.ended)
        if runner.retry_failed:
            forget_diverged_runs(folder, plan.runs)
        waiting = len(unfinished(jobs, runner.retry_failed))
        logger.info("%d runs, %d of them to do; logs in %s", len(jobs), waiting, output / "runs")
        run(jobs, runner.slots, runner.launcher, runner.retry_failed)
        return without_result(jobs)


def forget_diverged_runs(folder: SweepFolder, runs: Sequence[Run]) -> None:
    """Remove diverged runs, for nothing can go on from a checkpoint whose weights are not numbers."""
    for each in runs:
        result = read_json(folder.marker(each))
        if result is not None and is_divergence(str(result.get("failed", ""))):
            shutil.rmtree(folder.marker(each).parent)
