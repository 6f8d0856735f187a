"""The commands of the miniature, as they could be typed."""

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Programs are run side by side, and metrics named, as in the ablations.
sys.path.insert(0, str(ROOT / "examples" / "ablations"))

from glue import TASKS  # noqa: E402
from scales import Scale, Stage  # noqa: E402
from stages import Process  # noqa: E402

MODELS = {"MLM": ("--masked-input", "kept", "--decoder-layers", "0"), "MAE-LM": ("--masked-input", "dropped")}
RANDOM = "random weights"

# Of the documents: enough to analyze, and soon validated.
_HELD_OUT = 0.004


def prepare_corpus(texts: list[Path], scale: Scale, data: Path) -> Process:
    """Vocabulary and binarized text; documents are held out by `maelm prepare corpus`."""
    words = ["maelm", "prepare", "corpus", *map(str, texts), "--output", str(data), "--valid-fraction", str(_HELD_OUT)]
    return Process([*words, "--vocabulary-size", str(scale.vocabulary_size)], {})


def prepare_task(name: str, tables: Path, data: Path, output: Path) -> Process:
    """A GLUE task with the corpus' vocabulary."""
    words = [
        "maelm", "prepare", "sentences", "--vocabulary", str(data), "--output", str(output),
        "--train", str(tables / "train.tsv"), "--valid", str(tables / "valid.tsv"),
    ]  # fmt: skip
    return Process([*words, *(["--regression"] if TASKS[name].metric == "spearman" else [])], {})


def _device(gpu: bool) -> list[str]:
    own = ["--num-workers", "2", "--precision", "bf16"] if gpu else ["--num-workers", "0", "--cpu"]
    return ["--distributed-world-size", "1", *own]


def _train(model: str, scale: Scale, stage: Stage, data: Path, save_dir: Path, gpu: bool) -> list[str]:
    decoder = [] if model == "MLM" else ["--decoder-layers", str(scale.decoder_layers)]
    return [
        "fairseq-train", str(data), "--user-dir", str(ROOT / "fairseq_maelm"), "--save-dir", str(save_dir),
        "--task", "maelm", "--criterion", "maelm", *scale.model, "--max-positions", str(scale.last.tokens_per_sample),
        "--initial-output-bias", "frequencies", "--protect-special-tokens", "--mask-prob", str(stage.mask_prob),
        "--sample-break-mode", "none", "--tokens-per-sample", str(stage.tokens_per_sample),
        "--max-tokens", str(stage.max_tokens), "--max-update", str(stage.updates),
        "--lr", str(scale.learning_rate), "--clip-norm", "2.0", "--seed", "1",
        "--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01",
        "--no-epoch-checkpoints", "--save-interval", "1000000000", "--validate-interval", "1000000000",
        "--log-format", "json", "--log-interval", str(max(1, min(50, stage.updates // 20))),
        *MODELS[model], *decoder, *_device(gpu),
    ]  # fmt: skip


def pretrain(model: str, scale: Scale, number: int, data: Path, folder: Path, gpu: bool) -> Process:
    """A stage of pretraining. The same command again goes on from its last checkpoint.

    Args:
        model: a name of MODELS.
        scale: of the miniature.
        number: of the stage, from 0; each starts from the last checkpoint of the one before.
        data: the corpus.
        folder: of the model, with a folder for each stage.
        gpu: whether it has one.
    """
    stage, last = scale.stages[number], number == len(scale.stages) - 1
    before = ["--finetune-from-model", str(stage_folder(folder, number - 1) / "checkpoint_last.pt")] if number else []
    falling = ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(stage.updates)]
    words = _train(model, scale, stage, data, stage_folder(folder, number), gpu)
    words += [*before, *(falling if last else ["--lr-scheduler", "fixed"])]
    words += ["--warmup-updates", str(max(1, stage.updates // 20)), "--save-interval-updates", str(stage.updates // 2)]
    return Process(words, {})


def stage_folder(folder: Path, number: int) -> Path:
    """Where a stage of a model leaves its checkpoints."""
    return folder / f"stage_{number + 1}"


def half(scale: Scale) -> int:
    """Updates between two checkpoints of the last stage."""
    return scale.last.updates // 2


def draw_weights(scale: Scale, data: Path, save_dir: Path, gpu: bool) -> Process:
    """One update at learning rate 0 leaves the weights as the seed draws them."""
    still = replace(scale.last, updates=1)
    # The last --lr counts.
    words = _train("MLM", scale, still, data, save_dir, gpu)
    return Process([*words, "--lr", "0", "--lr-scheduler", "fixed", "--disable-validation"], {})


def fine_tune(
    name: str, scale: Scale, task: Path, checkpoint: Path, seed: int, save_dir: Path, gpu: bool, keep: bool
) -> Process:
    """Fine-tuning by the recipe for sentences.

    Args:
        name: of the GLUE task.
        scale: of the miniature.
        task: folder of `maelm prepare sentences`.
        checkpoint: where to start.
        seed: of order, head and dropout.
        save_dir: for the checkpoint.
        gpu: whether it has one.
        keep: whether the checkpoint is kept, for the analysis.
    """
    words = [
        "maelm", "finetune", str(task), "--checkpoint", str(checkpoint), "--output", str(save_dir),
        "--lr", str(scale.fine_tuning_rate), "--epochs", str(scale.fine_tuning_epochs), "--seed", str(seed),
        *(["--gpus", "1", "--precision", "bf16"] if gpu else ["--gpus", "0"]), *([] if keep else ["--", "--no-save"]),
    ]  # fmt: skip
    return Process(words, {})


def analyze(models: dict[str, Path], output: Path, tokens: int, data: Path, text: Path | None) -> Process:
    """`maelm analyze` on the corpus' held-out split, or on a text of its own."""
    words = ["maelm", "analyze", "--data", str(data), "--output", str(output), "--tokens", str(tokens)]
    words += [] if text is None else ["--text", str(text)]
    return Process([*words, *(word for name, path in models.items() for word in ("--model", f"{name}={path}"))], {})
