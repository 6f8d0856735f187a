"""The progress of a training: of this process's trainer, and in fairseq's log with ``--log-format json``."""

import contextlib
import datetime
import json
import math
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_BAR, _LEAST_BAR = 20, 5
_USUAL_COLUMNS = 80


class _Run:
    trainer: Callable[[], Any] = staticmethod(lambda: None)


def follow(trainer: Any) -> None:
    """Make a trainer of fairseq that of this process's run."""
    _Run.trainer = weakref.ref(trainer)


def running_trainer() -> Any:
    """Return the trainer of this process's run, or None before its first epoch."""
    return _Run.trainer()


class Training(NamedTuple):
    """The state of a training: finished fraction in [0, 1], updates per second, loss, seconds left."""

    share: float
    speed: float
    loss: float
    left: float

    def __str__(self) -> str:
        loss = "" if math.isnan(self.loss) else f"loss {self.loss:.3f}, "
        return f"{100 * self.share:.0f} %, {self.speed:.3g} updates/s, {loss}{clock(self.left)} left"


def training_state(record: Mapping[str, float], limits: Mapping[str, float]) -> Training:
    """Return the state of a training from the metrics of fairseq's "train_inner", and the limits that there are.

    The metrics are "num_updates" and, if known, "update" (fractional epochs), "ups" and "loss"; the limits "max_update"
    and "max_epoch".
    """
    updates, speed = record["num_updates"], record.get("ups", 0.0)
    # Whichever limit comes first ends the training.
    shares = [updates / limits["max_update"] if limits.get("max_update") else 0.0]
    shares += [record.get("update", 0.0) / limits["max_epoch"] if limits.get("max_epoch") else 0.0]
    share = min(1.0, max(shares))
    left = (updates / share - updates) / speed if share and speed else math.nan
    return Training(share, speed, record.get("loss", math.nan), left)


def metrics_of(text: str) -> dict[str, float] | None:
    """Return the numbers in a message that fairseq logs with ``--log-format json``; None for all other messages."""
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except json.JSONDecodeError:
        return None
    numbers = {}
    for name, value in record.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = float(value)
    return numbers


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds; "?" if it is unknown."""
    return str(datetime.timedelta(seconds=round(seconds))) if 0 <= seconds < float("inf") else "?"


def bar(share: float, space: int = _BAR + 3) -> str:
    """Return a progress bar and a space, or "" if they do not fit into ``space`` columns; ``share`` is in [0, 1]."""
    length = min(_BAR, space - 3)
    return f"[{'#' * int(share * length):<{length}}] " if length >= _LEAST_BAR else ""


def terminal_columns() -> int:
    """Return the width of the terminal on standard error."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS
