"""The progress of a sweep: one line with a bar in a terminal, one line a minute in a file."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairseq_maelm.launch.progress import Training, bar, clock, terminal_columns, training_state
from fairseq_maelm.sweep.log import last_attempt, log_records

# The remaining time is estimated only after this share of the sweep.
_LEAST_SHARE = 0.02
# Columns of a line in a file.
_ANY = 1000
_LIMIT = re.compile(r"'(max_update|max_epoch)': (\d+)")


def training(log: Path) -> Training | None:
    """Read the state of a training from its log; return None if the log has no training record (yet)."""
    records = [record for _, record in log_records(log, ["train_inner"], tail=True)]
    if not records or "num_updates" not in records[-1]:
        return None
    limits = {name: float(value) for name, value in _LIMIT.findall(last_attempt(log))}
    return training_state(records[-1], limits)


class Progress:
    """Shows overall progress, weighted by job cost, and the state of each running training.

    Args:
        total: summed cost of the jobs to run.
        count: number of all jobs.
        skipped: number of jobs that had already finished.
    """

    def __init__(self, total: float, count: int, skipped: int) -> None:
        self.total, self.count, self.skipped, self.failed = total, count, skipped, 0
        self.done, self.runs = 0.0, skipped
        self.begin, self._terminal = time.monotonic(), sys.stderr.isatty()
        self._shown = self.begin
        if skipped:
            self._write(f"{skipped} of {count} runs done earlier")

    def ended(self, cost: float, message: str, failed: bool = False) -> None:
        """Count a job that has ended, and print a line about it."""
        self.done, self.runs, self.failed = self.done + cost, self.runs + 1, self.failed + failed
        if message:
            self._write(message)

    def show(self, running: Sequence[tuple[str, Path, float]]) -> None:
        """Show the state if the next line is due; ``running`` has (name, log, cost) of each job."""
        now = time.monotonic()
        if now - self._shown >= (1.0 if self._terminal else 60.0):
            self._shown = now
            # The last column stays free, because some terminals start a new line after it.
            columns = terminal_columns() - 1 if self._terminal else _ANY
            self._write(self.line(running, now - self.begin, columns), end="")

    def line(self, running: Sequence[tuple[str, Path, float]], seconds: float, columns: int = _ANY) -> str:
        """Return the progress line after ``seconds``; the fewer ``columns``, the fewer details it shows."""
        trainings = [(name, cost, training(log)) for name, log, cost in running]
        done = self.done + sum(cost * each.share for _, cost, each in trainings if each)
        share = min(1.0, done / self.total) if self.total else 1.0
        percent, runs = f"{100 * share:3.0f} % ", f"{self.runs} of {self.count} runs"
        parts = [runs, *([f"{self.failed} failed"] if self.failed else [])]
        parts += [f"{clock(seconds * (1 - share) / share)} left"] if share >= _LEAST_SHARE else []
        names = [name if each is None else f"{name}: {each}" for name, _, each in trainings[:2]]
        states = [name if each is None else str(each) for name, _, each in trainings[:1]]
        whole = ", ".join(parts)
        for words in ([whole, *names], [whole, *names[:1]], [runs, *names[:1]], [runs, *states]):
            rest = "; ".join(words)
            shown = bar(share, columns - len(percent) - len(rest))
            if shown:
                return f"{percent}{shown}{rest}"
        return rest[:columns]

    def _write(self, text: str, end: str = "\n") -> None:
        sys.stderr.write(f"\r\x1b[K{text}{end}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Erase the progress line in a terminal."""
        if self._terminal:
            self._write("", end="")
