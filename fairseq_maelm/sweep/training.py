"""The command line of a run of a sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.finetuning import training
from fairseq_maelm.finetuning.encoder import Encoder
from fairseq_maelm.finetuning.recipe import Recipe
from fairseq_maelm.sweep.grid import Run
from fairseq_maelm.sweep.jobs import Process
from fairseq_maelm.train_command import Machine

__all__ = ["Model", "fine_tuning", "run_options"]


class Model(NamedTuple):
    """What is fine-tuned.

    Attributes:
        name: in tables.
        checkpoint: of pretraining; its sizes are taken over.
        random: whether only the sizes are, and the weights drawn anew.
        encoder: what the checkpoint holds.
    """

    name: str
    checkpoint: Path
    random: bool
    encoder: Encoder


def run_options(recipe: Recipe, model: Model, run: Run, updates_per_epoch: int, rehearsed: bool) -> dict[str, Any]:
    """The options of a run, apart from folders and machine.

    Args:
        recipe: of the task.
        model: that is fine-tuned.
        run: its setting and seed.
        updates_per_epoch: batches of the training data.
        rehearsed: whether the sizes are named, so that smaller ones can take their place.
    """
    sizes: Mapping[str, Any] = training.FROM_CHECKPOINT
    if model.random or rehearsed:
        sizes = {**model.encoder.options, **model.encoder.drawn}
    options = training.run_options(recipe, model.encoder, dict(run.setting.values), updates_per_epoch, sizes)
    start = {} if model.random else {"finetune-from-model": model.checkpoint}
    return {**options, **start, "seed": run.seed}


def fine_tuning(
    options: Mapping[str, Any],
    data: Path,
    save_dir: Path,
    machine: Machine,
    more: list[str],
    gpu: str,
) -> Process:
    """The program of a run. Started again, it goes on from the last epoch that it finished.

    Args:
        options: of ``run_options``.
        data: the task's folder.
        save_dir: for checkpoints.
        machine: where it runs.
        more: of fairseq-train, which win over all others.
        gpu: its number, "" for the CPU or where SLURM chooses it.
    """
    words = [*training.train_words(options, data, save_dir, machine), *more]
    environment = {"OMP_NUM_THREADS": str(machine.threads)}
    return Process(words, {**environment, "CUDA_VISIBLE_DEVICES": gpu} if gpu else environment)
