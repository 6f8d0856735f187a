"""The fine-tuning runs of the grid: their commands, and what is kept of them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
# What programs of the examples share; the package is found beside them when it is not installed.
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from checkpoint_options import encoder_options, model_options  # noqa: E402

from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN, Prompt  # noqa: E402
from fairseq_maelm.sweep.jobs import Job, Process, is_finished, read_json, visible  # noqa: E402

# The one checkpoint of a finished run that is kept, as long as no other run of its split is better.
BEST = "checkpoint_best.pt"


@dataclass(frozen=True)
class Setup:
    """What all runs share.

    Attributes:
        checkpoint: of pretraining.
        data: folder with its vocabulary.
        splits: folder of few_shot_splits.py.
        output: folder of the runs.
        per_label: examples of each label.
        updates: of a run.
        validate_every: updates between validations.
        several_pieces: allow label words of several pieces.
        options: further options of fairseq-train.
        gpu: whether runs are computed on one.
    """

    checkpoint: Path
    data: Path
    splits: Path
    output: Path
    per_label: int
    updates: int
    validate_every: int
    several_pieces: bool
    options: tuple[str, ...]
    gpu: bool

    def split(self, task: str, seed: int) -> Path:
        """Folder of the tables of a split."""
        return self.splits / "tables" / task / f"{self.per_label}-{seed}"


@dataclass(frozen=True)
class Trial:
    """A point of the grid: way "prompt" or "head", task, split, batch size and learning rate."""

    way: str
    task: str
    seed: int
    batch_size: int
    learning_rate: str

    def folder(self, setup: Setup) -> Path:
        """Where the run's checkpoint, log and result are."""
        name = f"{self.batch_size}-{self.learning_rate}"
        return setup.output / self.way / self.task / str(self.seed) / name

    def marker(self, setup: Setup) -> Path:
        """The file of its metric on the development set; its log is beside it."""
        return self.folder(setup) / "train.json"

    def __str__(self) -> str:
        return f"{self.way} {self.task}, split {self.seed}, batch size {self.batch_size}, lr {self.learning_rate}"


def command(trial: Trial, setup: Setup, save_dir: Path) -> list[str]:
    """Return the command of a run: the optimization of Gao et al. (2021) by fairseq-train."""
    prompt = BUILT_IN[trial.task]
    if trial.way == "prompt":
        own = [str(setup.data), "--task", "maelm_prompt", "--criterion", "maelm_prompt", "--prompt", trial.task]
        own += ["--examples", str(setup.split(trial.task, trial.seed))]
        own += ["--several-pieces"] if setup.several_pieces else []
        model = model_options(setup.checkpoint)
        positions = int(model[model.index("--max-positions") + 1])
        own += ["--max-length", str(min(prompt.max_length, positions)), *model]
    else:
        own = [str(save_dir.parent / "sentences"), "--task", "sentence_prediction", "--shorten-method", "truncate"]
        own += ["--criterion", "sentence_prediction", "--init-token", "0", "--separator-token", "2"]
        own += [*head_options(prompt), *encoder_options(setup.checkpoint)]
    updates = str(setup.updates)
    every = str(setup.validate_every)
    return [
        *["fairseq-train", *own, "--user-dir", str(ROOT / "fairseq_maelm"), "--save-dir", str(save_dir)],
        *["--finetune-from-model", str(setup.checkpoint)],
        *["--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-8", "--weight-decay", "0"],
        *["--clip-norm", "1.0", "--lr-scheduler", "polynomial_decay", "--lr", trial.learning_rate],
        *["--warmup-updates", "0", "--total-num-update", updates, "--max-update", updates],
        *["--batch-size", str(trial.batch_size), "--batch-size-valid", "32", "--required-batch-size-multiple", "1"],
        *["--dropout", "0.1", "--attention-dropout", "0.1", "--seed", str(trial.seed), "--num-workers", "0"],
        *["--validate-interval", "1000000", "--validate-interval-updates", every],
        *["--save-interval", "1000000", "--save-interval-updates", every, "--keep-interval-updates", "1"],
        *["--no-epoch-checkpoints", "--best-checkpoint-metric", prompt.metrics[0], "--maximize-best-checkpoint-metric"],
        *["--log-format", "json", "--log-interval", every, *setup.options],
        *["--distributed-world-size", "1", *([] if setup.gpu else ["--cpu"])],
    ]


def head_options(prompt: Prompt) -> list[str]:
    """Options of stock sentence_prediction for the task's labels, and to log the metric that chooses checkpoints."""
    classes = ["--num-classes", str(1 if prompt.bounds else len(prompt.labels))]
    report = {
        "mcc": ["--report-mcc"],
        "f1": ["--report-acc-and-f1"],
        "pearson": ["--regression-target", "--report-pearson-and-spearman"],
    }
    return classes + report.get(prompt.metrics[0], [])


def training_jobs(trials: Sequence[Trial], setup: Setup) -> list[Job]:
    """The runs of one split; those with a head follow the preparation of what stock sentence_prediction reads."""
    jobs = [_training(trial, trials, setup) for trial in trials]
    first = trials[0]
    if first.way == "prompt":
        return jobs
    folder = first.folder(setup).parent / "sentences"
    split = setup.split(first.task, first.seed)
    words = ["maelm", "prepare", "sentences", "--vocabulary", str(setup.data)]
    words += ["--train", str(split / "train.tsv"), "--valid", str(split / "valid.tsv"), "--output", str(folder)]
    words += ["--regression"] if BUILT_IN[first.task].bounds else []

    name = f"sentences of {first.task}, split {first.seed}"
    return [Job(name, folder.with_suffix(".json"), lambda slot: Process(words, {}), followers=jobs, clears=[folder])]


def _training(trial: Trial, split: Sequence[Trial], setup: Setup) -> Job:
    folder = trial.folder(setup)
    return Job(
        str(trial),
        trial.marker(setup),
        lambda slot: Process(command(trial, setup, folder), visible(slot)),
        lambda log: {"dev": _best_metric(folder)},
        resumes=True,
        cost=setup.updates,
        ended=lambda: _keep_the_best(split, setup),
    )


def _best_metric(folder: Path) -> float:
    """The best metric on the development set, in percent; of the checkpoints only its own stays."""
    metric = float(torch.load(folder / BEST, weights_only=True)["extra_state"]["val_loss"])
    for path in folder.glob("checkpoint_*.pt"):
        if path.name != BEST:
            path.unlink()
    return metric


def best_of(split: Sequence[Trial], setup: Setup) -> Trial:
    """The finished run of a split that is best on the development set, the first of equals.

    Raises:
        ValueError: none is finished.
    """
    metrics = {trial: read_json(trial.marker(setup)) or {} for trial in split}
    return max((trial for trial in split if "dev" in metrics[trial]), key=lambda trial: metrics[trial]["dev"])


def _keep_the_best(split: Sequence[Trial], setup: Setup) -> None:
    finished = [trial for trial in split if is_finished(trial.marker(setup))]
    best = best_of(finished, setup) if finished else None
    for trial in finished:
        if trial != best:
            (trial.folder(setup) / BEST).unlink(missing_ok=True)
