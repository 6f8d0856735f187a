"""Tell from the host's clock whether a GPU waits: for operations to be started, or for batches."""

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch

logger = logging.getLogger(__name__)

# Updates between two looks. Validations, checkpoints and the first updates are too few among them to change a median.
_UPDATES = 100
# The GPU does not wait for operations if it needs this share of a batch's time after the last one has been started.
_LEAST_BEHIND = 0.1
# Of the time from update to update, how much may pass without a batch.
_MOST_WITHOUT_BATCH = 0.2


class _Update(NamedTuple):
    seconds: float  # of a batch
    behind: float  # share of it that the GPU still needs when the host has started all operations
    without_batch: float  # share of the time since the last update in which the GPU had none


class HostWatch:
    """Log a line when a GPU begins to wait for the host, from the times of the calls that fairseq makes.

    No call waits for the GPU. fairseq does so in every update, between the backward pass and the optimizer's step, when
    it looks whether gradients are finite: how long that takes is how far the GPU is behind the host.

    Args:
        clock: seconds since some time.
        event: a CUDA event.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, event: Any = None) -> None:
        self._clock, self._event = clock, event or torch.cuda.Event()
        self._batches, self._without_batch = 0, 0.0
        self._began = self._last = self._stepped = clock()
        self._updates: list[_Update] = []
        self._waits_for = ""

    def batch_begins(self) -> None:
        """Take note that there is a batch."""
        now = self._clock()
        if not self._batches:
            self._began = now
        # After a step the GPU has next to nothing to do, in an update the next batch may come in time.
        if not self._batches or self._event.query():
            self._without_batch += now - self._last
        self._batches += 1

    def batch_started(self) -> None:
        """Take note that all operations of its forward and backward pass are started."""
        self._event.record()
        self._last = self._clock()

    def gradients_known(self) -> None:
        """Take note that the GPU has computed all gradients of an update."""
        now = self._clock()
        seconds, since = (now - self._began) / max(1, self._batches), now - self._stepped
        if seconds > 0.0 and since > 0.0:
            self._updates.append(_Update(seconds, (now - self._last) / seconds, self._without_batch / since))
        if len(self._updates) == _UPDATES:
            self._look(*(median(numbers) for numbers in zip(*self._updates)))
            self._updates = []

    def step_started(self) -> None:
        """Take note that the optimizer's step is started."""
        self._batches, self._without_batch = 0, 0.0
        self._last = self._stepped = self._clock()

    def _look(self, seconds: float, behind: float, without_batch: float) -> None:
        before, self._waits_for = self._waits_for, ""
        if without_batch > _MOST_WITHOUT_BATCH:
            self._waits_for = "batches"
            advice = f"there is none for {without_batch:.0%} of the time. Give more --num-workers"
        elif behind < _LEAST_BEHIND:
            self._waits_for = "the host"
            advice = (
                f"starting the operations of a batch takes {1 - behind:.0%} of its {1e3 * seconds:.1f} ms. Give larger "
                "batches (--max-tokens or --batch-size), and a smaller --update-freq"
            )
        if self._waits_for and self._waits_for != before:
            logger.info("the GPU waits for %s: %s", self._waits_for, advice)
