"""The encoder of a checkpoint as options of fairseq-train."""

from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.sizes import DEFAULT_SIZE, SIZES

_INITIALIZATION = ("init_std", "embedding_init_std")


class Encoder(NamedTuple):
    """An encoder as options of fairseq-train, whose names have no leading dashes."""

    options: dict[str, Any]  # the options that build it, so that its weights can be loaded
    drawn: dict[str, Any]  # the options of its random initialization before pretraining


def read_encoder(checkpoint: Path) -> Encoder:
    """Read the encoder's options from a checkpoint of our model."""
    content = read_checkpoint(checkpoint)
    options = {name.replace("_", "-"): _plain(value) for name, value in content.encoder_options.items()}
    # A model that took its sizes from another has no named size. Any name will do, because all sizes are given.
    options["arch"] = options["arch"] if options["arch"] in SIZES else DEFAULT_SIZE
    drawn = {field.replace("_", "-"): getattr(content.config.model, field) for field in _INITIALIZATION}
    return Encoder(options, drawn)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
