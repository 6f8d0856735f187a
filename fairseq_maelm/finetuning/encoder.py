"""What a checkpoint decides about fine-tuning, and how long a fine-tuning is."""

from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.sizes import SIZES

__all__ = ["Encoder", "read_encoder", "schedule"]

# What the encoder is made of; a checkpoint fits no other.
_FIELDS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "relative_buckets",
    "relative_num_buckets",
    "relative_max_distance",
    "max_positions",
    "layer_norm_eps",
)
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
    config = content.config.model
    named = {field.replace("_", "-"): getattr(config, field) for field in _FIELDS}
    drawn = {field.replace("_", "-"): getattr(config, field) for field in _DRAWN}
    # One that took its sizes from another has no name of them; any name will do, as all numbers are given.
    arch = str(config._name) if config._name in SIZES else "maelm_base"
    options = {"arch": arch, **{name: _plain(value) for name, value in named.items()}}
    return Encoder(options, drawn, int(content.weights["encoder.identity"][0]))


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
