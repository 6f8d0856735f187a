"""The progress of a study: one line with a bar in a terminal, one line a minute in a file."""

import datetime
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.studies.log import last_attempt, log_records

_BAR = 20
# An estimate needs this share of the study.
_LEAST_SHARE = 0.02
_LIMIT = re.compile(r"'(max_update|max_epoch)': (\d+)")


class Training(NamedTuple):
    """The state of a training by its log: share of the updates in [0, 1], updates a second, loss, seconds left."""

    share: float
    speed: float
    loss: float
    left: float

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} %, {self.speed:.3g} updates/s, loss {self.loss:.3f}, {clock(self.left)} left"


def training(log: Path) -> Training | None:
    """Read how far the training is that writes a log; None before its first report, and for other programs."""
    records = [record for _, record in log_records(log, ["train_inner"], tail=True)]
    if not records or "num_updates" not in records[-1]:
        return None
    last, limits = records[-1], {name: int(value) for name, value in _LIMIT.findall(last_attempt(log))}
    updates, speed = last["num_updates"], last.get("ups", 0.0)
    # A limit of 0 is none. "update" counts epochs, with fractions.
    shares = [updates / limits["max_update"] if limits.get("max_update") else 0.0]
    shares += [last.get("update", 0.0) / limits["max_epoch"] if limits.get("max_epoch") else 0.0]
    share = min(1.0, max(shares))
    left = (updates / share - updates) / speed if share and speed else float("nan")
    return Training(share, speed, last.get("loss", float("nan")), left)


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds; "?" for one that is not known."""
    return str(datetime.timedelta(seconds=round(seconds))) if 0 <= seconds < float("inf") else "?"


class Progress:
    """Shows how far all jobs are, in units of their costs, and the trainings among those that run.

    Args:
        total: cost of all jobs that are to be run.
        count: number of all jobs.
        skipped: number of jobs that were finished earlier.
    """

    def __init__(self, total: float, count: int, skipped: int) -> None:
        self.total, self.count, self.skipped, self.failed = total, count, skipped, 0
        self.done, self.runs = 0.0, skipped
        self.begin, self._terminal = time.monotonic(), sys.stderr.isatty()
        self._shown = self.begin
        if skipped:
            self._write(f"{skipped} of {count} runs done earlier")

    def ended(self, cost: float, message: str, failed: bool = False) -> None:
        """Count a job that has ended, and write a line about it."""
        self.done, self.runs, self.failed = self.done + cost, self.runs + 1, self.failed + failed
        if message:
            self._write(message)

    def show(self, running: Sequence[tuple[str, Path, float]]) -> None:
        """Show the state if it is time to: name, log and cost of each running job."""
        now = time.monotonic()
        if now - self._shown < (1.0 if self._terminal else 60.0):
            return
        self._shown = now
        line = self.line(running, now - self.begin)
        if self._terminal:
            sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        else:
            self._write(line)

    def line(self, running: Sequence[tuple[str, Path, float]], seconds: float) -> str:
        """Return the line that is shown after so many seconds."""
        trainings = [(name, cost, training(log)) for name, log, cost in running]
        done = self.done + sum(cost * each.share for _, cost, each in trainings if each)
        share = min(1.0, done / self.total) if self.total else 1.0
        bar = "#" * int(share * _BAR)
        parts = [f"{100 * share:3.0f} % [{bar:<{_BAR}}] {self.runs} of {self.count} runs"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{clock(seconds * (1 - share) / share)} left"] if share >= _LEAST_SHARE else []
        names = [name if each is None else f"{name}: {each}" for name, _, each in trainings[:2]]
        return "; ".join([", ".join(parts), *names])

    def _write(self, text: str) -> None:
        sys.stderr.write(("\r\x1b[K" if self._terminal else "") + text + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
