"""The command line of a fine-tuning run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.sweep.encoder import Encoder, schedule
from fairseq_maelm.sweep.grid import Run, spelled
from fairseq_maelm.sweep.jobs import Process
from fairseq_maelm.sweep.recipe import Recipe

__all__ = ["PRECISIONS", "Machine", "Model", "fine_tuning", "run_options", "task_options", "words_of"]

_USER_DIR = Path(__file__).resolve().parents[1]

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"fp16": True, "fp16-init-scale": 4, "fp16-scale-window": 128},
}
# The paper's Table 4, and what is written to the log; a recipe may change them.
_FINE_TUNING: dict[str, Any] = {
    "optimizer": "fused_adamw",
    "adam-betas": "(0.9, 0.98)",
    "adam-eps": "1e-6",
    "weight-decay": 0.01,
    "clip-norm": 0,
    "lr-scheduler": "polynomial_decay",
    "dropout": 0.1,
    "attention-dropout": 0.1,
    "required-batch-size-multiple": 1,
    "log-interval": 100,
}
# <s> a </s> for a sentence, <s> a </s> </s> b </s> for a pair.
_OF_TASK: dict[str, dict[str, Any]] = {
    "sentence_prediction": {"init-token": 0, "separator-token": 2, "shorten-method": "truncate"}
}


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


class Machine(NamedTuple):
    """Where runs are computed.

    Attributes:
        gpu: on a GPU, otherwise on the CPU.
        precision: a name of PRECISIONS.
        threads: of a run.
    """

    gpu: bool
    precision: str
    threads: int

    def options(self) -> dict[str, Any]:
        """For fairseq-train; a run has one GPU at most."""
        device = {"num-workers": 2} if self.gpu else {"cpu": True, "num-workers": 0}
        return {"distributed-world-size": 1, **device, **PRECISIONS[self.precision]}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words; True is a flag, and what is False or None is left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", spelled(value)]
    return words


def task_options(recipe: Recipe, model: Model) -> dict[str, Any]:
    """All options that do not depend on the setting, the seed or the machine."""
    return {
        **_FINE_TUNING,
        **_OF_TASK.get(str(recipe.options["task"]), {}),
        "best-checkpoint-metric": recipe.metric,
        "maximize-best-checkpoint-metric": True,
        **recipe.options,
        **model.encoder.options,
        **(model.encoder.drawn if model.random else {}),
    }


def run_options(recipe: Recipe, model: Model, run: Run, updates_per_epoch: int) -> dict[str, Any]:
    """The options of a run, apart from folders and machine."""
    setting = dict(run.setting.values)
    epochs, warm_up = int(setting.pop("epochs")), setting.pop("warm-up")
    options = {**task_options(recipe, model), **setting, **schedule(epochs, updates_per_epoch, warm_up)}
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
    saving = {"save-dir": save_dir, "no-epoch-checkpoints": True}
    words = [
        *("fairseq-train", str(data), "--user-dir", str(_USER_DIR), "--log-format", "json"),
        *words_of({**options, **machine.options(), **saving}),
        *more,
    ]
    environment = {"OMP_NUM_THREADS": str(machine.threads)}
    return Process(words, {**environment, "CUDA_VISIBLE_DEVICES": gpu} if gpu else environment)
