"""Detect by the host's clock that a GPU waits for the host or for batches."""

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch

logger = logging.getLogger(__name__)

# Updates of a check. Validations, checkpoints and slow first updates are too few to change the median.
_UPDATES = 100
# After the host has launched all operations of a batch, a busy GPU needs at least this share of the batch's time more.
_LEAST_BEHIND = 0.1
# Largest accepted share of the time between updates in which the GPU has no batch.
_MOST_WITHOUT_BATCH = 0.2


class _Update(NamedTuple):
    seconds: float  # time of a batch
    behind: float  # share of it that the GPU still needs after the host has launched all operations
    without_batch: float  # share of the time since the last update in which the GPU had no batch


class HostWatch:
    """Logs a line when a GPU begins to wait for the host, by the times of fairseq's calls.

    The methods do not wait for the GPU. fairseq itself does in every update, between the backward pass and the
    optimizer's step, to check that gradients are finite. The duration of this wait is the GPU's lag behind the host.

    Args:
        clock: returns the time in seconds.
        event: a CUDA event.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, event: Any = None) -> None:
        self._clock, self._event = clock, event or torch.cuda.Event()
        self._batches, self._without_batch = 0, 0.0
        self._began = self._last = self._stepped = clock()
        self._updates: list[_Update] = []
        self._waits_for = ""

    def batch_begins(self) -> None:
        """Record that a batch has arrived."""
        now = self._clock()
        if not self._batches:
            self._began = now
        # After a step the GPU has almost nothing to do. Within an update the next batch may arrive in time.
        if not self._batches or self._event.query():
            self._without_batch += now - self._last
        self._batches += 1

    def batch_started(self) -> None:
        """Record that all operations of a batch's forward and backward pass have been launched."""
        self._event.record()
        self._last = self._clock()

    def gradients_known(self) -> None:
        """Record that the GPU has computed all gradients of an update."""
        now = self._clock()
        seconds, since = (now - self._began) / max(1, self._batches), now - self._stepped
        if seconds > 0.0 and since > 0.0:
            self._updates.append(_Update(seconds, (now - self._last) / seconds, self._without_batch / since))
        if len(self._updates) == _UPDATES:
            self._look(*(median(numbers) for numbers in zip(*self._updates)))
            self._updates = []

    def step_started(self) -> None:
        """Record that the optimizer's step is launched."""
        self._batches, self._without_batch = 0, 0.0
        self._last = self._stepped = self._clock()

    def _look(self, seconds: float, behind: float, without_batch: float) -> None:
        before, self._waits_for = self._waits_for, ""
        if without_batch > _MOST_WITHOUT_BATCH:
            self._waits_for = "the GPU waits for batches"
            advice = f"it has none for {without_batch:.0%} of the time. Use more --num-workers"
        elif behind < _LEAST_BEHIND:
            self._waits_for = "the GPU waits for the host"
            advice = (
                f"launching the operations of a batch takes {1 - behind:.0%} of its {1e3 * seconds:.1f} ms. Use larger "
                "batches (--max-tokens or --batch-size) and a smaller --update-freq"
            )
        if self._waits_for and self._waits_for != before:
            logger.info("%s: %s", self._waits_for, advice)
