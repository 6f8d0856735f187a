"""The commands of the quickstart, as they could be typed, and the sentences whose masks are filled."""

from collections.abc import Sequence
from pathlib import Path

import fairseq_maelm

# The same command on every machine, so that the numbers can be compared: one process, no GPU.
_MACHINE = ("--cpu", "--distributed-world-size", "1", "--num-workers", "0")
_LOG = ("--log-format", "json", "--no-epoch-checkpoints")

# Training on short sequences first lets the model find out soon that neighbors tell about a masked token; from there
# it learns longer ones quickly. On long sequences alone, five minutes are over before it has.
SHORT_LENGTH, LENGTH = 16, 64

# A model that starts from nothing needs many predictions. With most of a long sequence masked, neighbors no longer
# suffice, and the encoder has to learn what a text is about.
_SHORT_MASK_PROB, _MASK_PROB = "0.4", "0.75"
_SCORED_MASK_PROB = "0.15"

_MODEL = (
    "--arch", "maelm_tiny", "--encoder-attention-heads", "4", "--decoder-layers", "1",
    # The usual 0.02 is meant for a width of 768 and more; this model's is 128.
    "--init-std", "0.05", "--max-positions", str(LENGTH),
)  # fmt: skip
_OPTIMIZER = (
    *("--optimizer", "fused_adamw", "--adam-betas", "(0.9,0.98)", "--adam-eps", "1e-6"),
    *("--weight-decay", "0.01"),
)

_PRETRAINING_RATE = "1.5e-3"
_FINE_TUNING_RATE = "1e-3"
_FINE_TUNING_VALIDATIONS = 6

# What documentation says, with a gap; candidates can be judged by eye.
SENTENCES = (
    "Return a copy of the array with all elements <mask> in ascending order.",
    "If <mask>, print progress messages while the model is fitted.",
    "The default value is <mask>.",
    "Raise a <mask> if the file does not exist.",
)


def vocabulary_size(text_bytes: int) -> int:
    """Pieces that a text can give and that five minutes of training see often enough to learn."""
    return 2000 if text_bytes >= 200_000 else 500


def prepare(text: Path, data: Path) -> tuple[str, ...]:
    """Vocabulary and binarized text."""
    return (
        "maelm", "prepare", str(text / "train.txt"), "--valid", str(text / "valid.txt"),
        "--output", str(data), "--vocabulary-size", str(vocabulary_size((text / "train.txt").stat().st_size)),
    )  # fmt: skip


def _train(data: Path, output: Path, length: int, mask_prob: str, updates: int) -> tuple[str, ...]:
    return (
        "fairseq-train", str(data), "--user-dir", user_dir(), "--task", "maelm", "--criterion", "maelm",
        *_MODEL, "--dropout", "0", "--attention-dropout", "0", "--initial-output-bias", "frequencies",
        "--mask-prob", mask_prob, "--protect-special-tokens",
        "--sample-break-mode", "none", "--tokens-per-sample", str(length),
        "--max-tokens", "4096", "--max-tokens-valid", "8192",
        "--max-update", str(updates), *_OPTIMIZER, "--seed", "1", "--save-dir", str(output), *_LOG, *_MACHINE,
    )  # fmt: skip


def start(data: Path, output: Path) -> tuple[str, ...]:
    """One update at learning rate 0 leaves the weights as the seed draws them; fairseq then validates them."""
    still = ("--lr", "0", "--lr-scheduler", "fixed", "--no-save")
    return (*_train(data, output, LENGTH, _SCORED_MASK_PROB, updates=1), *still)


def score(data: Path, checkpoint: Path) -> tuple[str, ...]:
    """Validate a checkpoint with the usual share of masks, whichever it was trained with."""
    return (
        "fairseq-validate", str(data), "--user-dir", user_dir(), "--task", "maelm", "--path", str(checkpoint),
        "--mask-prob", _SCORED_MASK_PROB, "--max-tokens", "8192", "--log-format", "json", "--num-workers", "0", "--cpu",
    )  # fmt: skip


def _paced(updates: int) -> tuple[str, ...]:
    interval = str(max(1, updates // 4))
    return (
        "--lr", _PRETRAINING_RATE, "--warmup-updates", str(max(1, updates // 10)), "--clip-norm", "2.0",
        "--validate-interval-updates", interval, "--save-interval-updates", interval,
        "--keep-interval-updates", "1", "--log-interval", "20",
    )  # fmt: skip


def pretrain_short(data: Path, output: Path, updates: int) -> tuple[str, ...]:
    """The first stage. The same command again goes on from the last checkpoint."""
    stage = _train(data, output, SHORT_LENGTH, _SHORT_MASK_PROB, updates)
    return (*stage, "--lr-scheduler", "fixed", *_paced(updates))


def pretrain(data: Path, output: Path, updates: int, short: Path) -> tuple[str, ...]:
    """The second stage, from the checkpoint ``short``. The same command again goes on from its own last checkpoint."""
    return (
        *_train(data, output, LENGTH, _MASK_PROB, updates), "--finetune-from-model", str(short),
        "--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates), *_paced(updates),
    )  # fmt: skip


def fine_tune(task: Path, classes: int, checkpoint: Path | None, updates: int, seed: int) -> tuple[str, ...]:
    """fairseq's own ``sentence_prediction``, from a checkpoint or from random weights."""
    restored = () if checkpoint is None else (
        "--restore-file", str(checkpoint), "--reset-optimizer", "--reset-dataloader", "--reset-meters",
        "--reset-lr-scheduler",
    )  # fmt: skip
    return (
        "fairseq-train", str(task), "--user-dir", user_dir(),
        "--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", str(classes),
        "--init-token", "0", *_MODEL, "--dropout", "0.1", "--attention-dropout", "0.1", "--pooler-dropout", "0.1",
        *restored, "--batch-size", "32", "--max-update", str(updates), *_OPTIMIZER,
        "--lr", _FINE_TUNING_RATE, "--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates),
        "--warmup-updates", str(max(1, updates // 10)), "--clip-norm", "1.0", "--seed", str(seed),
        "--valid-subset", "valid,test", "--batch-size-valid", "64", "--log-interval", "10",
        # Nothing is saved; fairseq would still make its default folder, and start from a checkpoint that lies there.
        "--no-save", "--save-dir", str(task),
        "--validate-interval-updates", str(max(1, updates // _FINE_TUNING_VALIDATIONS)),
        "--validate-interval", "1000000", *_LOG, *_MACHINE,
    )  # fmt: skip


def user_dir() -> str:
    """What `maelm user-dir` prints."""
    return str(Path(fairseq_maelm.__file__).parent)


def held_out_sentences(text: Path, count: int = 4) -> Sequence[str]:
    """Takes the beginnings of paragraphs of a held-out text and masks the longest word of each.

    Args:
        text: a paragraph a line.
        count: of sentences, at most.
    """
    sentences = []
    for line in text.read_text(encoding="utf-8").splitlines():
        words = line.split()[:25]
        plain = [word for word in words if word.isalpha()]
        if len(words) >= 8 and plain:
            words[words.index(max(plain, key=len))] = "<mask>"
            sentences.append(" ".join(words))
    step = max(1, len(sentences) // count)
    return sentences[::step][:count]
