"""What a checkpoint can read: the number of tokens and texts of an example, and how longer ones are cut."""

from typing import Any, NamedTuple

from fairseq.tasks import TASK_REGISTRY


class TextLimits(NamedTuple):
    """The limits of training, which hold wherever the checkpoint is used."""

    tokens: int  # of an example, special tokens included
    texts: int | None = None  # of an example, 1 or 2; None if unknown
    at_the_end: bool = False  # cut the end of joined texts with its </s>, instead of the longer text of a pair


def read_limits(config: Any, positions: int) -> TextLimits:
    """Return the limits by a checkpoint's configuration and the number of its model's positions."""
    cfg = config.task
    # fairseq's own tasks do not name their option.
    option = getattr(TASK_REGISTRY.get(cfg._name), "length_option", "--max-positions")
    tokens = getattr(cfg, option.removeprefix("--").replace("-", "_"), None) or positions
    at_the_end = str(getattr(cfg, "shorten_method", "none")) == "truncate"
    return TextLimits(min(tokens, positions), getattr(cfg, "texts", None), at_the_end)
