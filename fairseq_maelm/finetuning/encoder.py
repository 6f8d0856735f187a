"""What a checkpoint decides about fine-tuning, and how long a fine-tuning is."""

from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.sizes import DEFAULT_SIZE, SIZES

__all__ = ["Encoder", "read_encoder", "schedule"]

# How its random weights were drawn before pretraining.
_DRAWN = ("init_std", "embedding_init_std")


class Encoder(NamedTuple):
    """An encoder as options of fairseq-train.

    Attributes:
        options: name without dashes -> value: all that its weights need to be loaded.
        drawn: name -> value: what draws weights as its own were drawn before pretraining.
        vocabulary: a number that is another for any other vocabulary.
    """

    options: dict[str, Any]
    drawn: dict[str, Any]
    vocabulary: int


def read_encoder(checkpoint: Path) -> Encoder:
    """Read what a checkpoint holds.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint of our model.
    """
    content = read_checkpoint(checkpoint)
    options = {name.replace("_", "-"): _plain(value) for name, value in content.encoder_options.items()}
    # One that took its sizes from another has no name of them; any name will do, as all numbers are given.
    options["arch"] = options["arch"] if options["arch"] in SIZES else DEFAULT_SIZE
    drawn = {field.replace("_", "-"): getattr(content.config.model, field) for field in _DRAWN}
    return Encoder(options, drawn, content.vocabulary)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def schedule(epochs: int, updates_per_epoch: int, warm_up: float) -> dict[str, int]:
    """Options for the length of training and its warm-up.

    Args:
        epochs: passes over the training data.
        updates_per_epoch: batches of the training data.
        warm_up: fraction of all updates in which the learning rate rises.
    """
    updates = epochs * updates_per_epoch
    return {
        "max-epoch": epochs,
        "max-update": updates,
        "total-num-update": updates,
        "warmup-updates": round(warm_up * updates),
    }
