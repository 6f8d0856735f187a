"""The training screen: progress on standard error, and fairseq's whole log in the save folder.

In a terminal, one line with a bar is kept up to date; otherwise a line is written each minute. Validations, warnings,
and this package's messages about stopping and resuming get a line each.
"""

import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_maelm.checkpoints.locate import LOG_FILE
from fairseq_maelm.launch.progress import bar, metrics_of, running_trainer, terminal_columns, training_state

# With several GPUs, each process is a new interpreter and gets the log's path and the limits from this variable.
_FOR_RANKS = "MAELM_TRAINING_SCREEN"

FORMAT = logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S")
_SHORT = logging.Formatter("%(asctime)s | %(message)s", "%H:%M:%S")
# Loggers with all messages shown; and prefixes of messages that are shown from any logger.
_SHOWN = (
    "fairseq_maelm.fairseq_fixes",
    "fairseq_maelm.finetuning.sentences.frozen_start",
    "fairseq_maelm.launch",
    "fairseq_maelm.launch.training",
    "fairseq_maelm.tasks.general_text",
)
_SHOWN_TEXTS = ("Loaded checkpoint", "early stop since", "dropping ", "an epoch takes ")
# Values that fairseq logs with a validation but that are not metrics.
_NO_METRICS = {"epoch", "bsz", "wpb", "wps", "ups", "wall", "train_wall", "num_updates", "masked", "padding"}
# Prefix of fairseq's message after all checks and before the first update.
_BEGIN = "begin training epoch"
_SECONDS_OF_LOOK, _SECONDS_IN_FILE, _SECONDS_OF_SPEED = 1.0, 60.0, 60.0
# The speed is that of at least this many steps forward, because single updates may take a minute.
_FEWEST_STEPS = 5


class Screen(logging.Handler):
    """A handler that shows this process's training on standard error; ``limits`` as in ``training_state``."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        super().__init__()
        self.setFormatter(_SHORT)
        self._limits, self._last = limits, dict[str, float]()
        # (number of updates, time when first seen) of about the last minute, because training often starts slowly.
        self._looks = deque[tuple[int, float]]()
        self._ended = threading.Event()
        self._is_terminal = sys.stderr.isatty()
        threading.Thread(target=self._watch, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record if users should see it, and remember the loss."""
        text = record.getMessage()
        metrics = metrics_of(text) if record.levelno == logging.INFO else None
        if metrics is None:
            told = record.name.startswith(_SHOWN) or text.startswith(_SHOWN_TEXTS)
            if told or (record.levelno >= logging.WARNING and record.name != "py.warnings"):
                self._write(self.format(record))
        elif record.name == "train_inner":
            self._last = metrics
        elif record.name != "train":
            self._write(_short(f"{record.name} after {_validation(record.name, metrics)}"))

    def close(self) -> None:
        """Stop showing progress."""
        self._ended.set()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\r\x1b[K" if self._is_terminal else "")
        super().close()

    def line(self, updates: int, now: float) -> str | None:
        """Return the progress line at ``updates`` updates and time ``now`` in seconds; None before the first update."""
        looks = self._looks
        if not looks or updates > looks[-1][0]:
            looks.append((updates, now))
        while len(looks) > _FEWEST_STEPS + 1 and now - looks[1][1] >= _SECONDS_OF_SPEED:
            looks.popleft()
        (first, begun), (_, seen) = looks[0], looks[-1]
        if updates <= first:
            return None
        # The update that is being computed counts when it takes longer than those before.
        seconds = max((seen - begun) / (updates - first), (now - begun) / (updates - first + 1))
        last = self._last
        # The last record is some updates old; scale its number of epochs to the current number of updates.
        epochs = last.get("update", 0.0) * updates / last.get("num_updates", updates)
        state = training_state({**last, "num_updates": updates, "update": epochs, "ups": 1 / seconds}, self._limits)
        state = state._replace(left=state.left - min(seconds, now - seen))
        if not self._is_terminal:
            return _short(str(state))
        # The last column stays free, because some terminals start a new line after it.
        columns = terminal_columns() - 1
        return f"{bar(state.share, columns - len(str(state)))}{state}"[:columns]

    def _watch(self) -> None:
        last_line = -math.inf
        while not self._ended.wait(_SECONDS_OF_LOOK):
            trainer = running_trainer()
            # Only the first rank logs information.
            if trainer is None or logging.root.level > logging.INFO:
                continue
            loss = running_loss()
            if loss is not None:
                self._last = {**self._last, "loss": loss}
            now = time.monotonic()
            line = self.line(trainer.get_num_updates(), now)
            if line is not None and self._is_terminal:
                self._write(line, end="")
            elif line is not None and now - last_line >= _SECONDS_IN_FILE:
                self._write(line)
                last_line = now

    def _write(self, line: str, end: str = "\n") -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"\r\x1b[K{line}{end}" if self._is_terminal else f"{line}{end}")
            sys.stderr.flush()


class LogFile(logging.FileHandler):
    """A handler that writes all records to a file, created at the first update: a rejected run leaves no file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(FORMAT)
        self._kept: list[logging.LogRecord] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep records until the first update; then write them and all later ones."""
        with contextlib.suppress(OSError):
            if self._kept is None:
                super().emit(record)
                return
            text = record.getMessage()
            self._kept.append(logging.makeLogRecord({**vars(record), "msg": text, "args": None}))
            if text.startswith(_BEGIN):
                kept, self._kept = self._kept, None
                for each in kept:
                    super().emit(each)

    def handleError(self, record: logging.LogRecord) -> None:
        """Stop writing; a full disk is reported when a checkpoint is written."""
        self.setLevel(logging.CRITICAL + 1)


def running_loss() -> float | None:
    """Return the mean loss since fairseq last logged the loss, or None if there was no update since."""
    from fairseq.logging import metrics  # imported late, like all of fairseq here

    try:
        return float(metrics.get_smoothed_value("train_inner", "loss"))
    except (KeyError, TypeError):
        return None


def _short(text: str) -> str:
    return _SHORT.format(logging.makeLogRecord({"msg": text}))


def _validation(subset: str, numbers: Mapping[str, float]) -> str:
    """Describe a validation by the number of updates and the metrics."""
    named = {name.removeprefix(f"{subset}_"): value for name, value in numbers.items()}
    metrics = ", ".join(f"{name} {value:g}" for name, value in named.items() if name not in _NO_METRICS)
    return f"{named.get('num_updates', 0):,.0f} updates: {metrics}"


@contextlib.contextmanager
def shown(folder: Path, limits: Mapping[str, float]) -> Iterator[None]:
    """Within this context, show the progress of training, also in child processes, and write its log to ``folder``."""
    root = logging.root
    before, level = root.handlers[:], root.level
    os.environ[_FOR_RANKS] = json.dumps([os.path.abspath(folder / LOG_FILE), dict(limits)])
    logging.captureWarnings(True)
    handlers = show_in_rank()
    try:
        yield
    finally:
        del os.environ[_FOR_RANKS]
        logging.captureWarnings(False)
        root.handlers[:] = before
        root.setLevel(level)
        for handler in handlers:
            handler.close()


def show_in_rank() -> list[logging.Handler]:
    """Inside ``shown``, replace this process's log handlers and return the new ones; otherwise return []."""
    settings = os.environ.get(_FOR_RANKS)
    if settings is None:
        return []
    log, limits = json.loads(settings)
    handlers: list[logging.Handler] = [Screen(limits), LogFile(Path(log))]
    if not is_first_rank():
        handlers.pop().close()
        handlers[0].setLevel(logging.WARNING)
    logging.root.handlers[:] = handlers  # fairseq has set the level of this rank
    return handlers


def is_first_rank() -> bool:
    """Return whether this is rank 0 of torchrun or SLURM, which run the same command on every rank."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
