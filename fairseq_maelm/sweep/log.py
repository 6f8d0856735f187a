"""Readers of the logs that fairseq-train writes with ``--log-format json``."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.launch.progress import metrics_of

_RECORD = re.compile(r"\| INFO \| (\S+) \| (\{.*\})\s*$")
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b")
_TAIL_BYTES = 65536


def log_records(log: Path, kinds: Sequence[str], tail: bool = False) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each log record's kind and metrics.

    Args:
        log: path of the log, which may be missing or still growing.
        kinds: kinds of records: "train_inner", "train", or the name of a validation set.
        tail: whether to read only the end of the log.
    """
    if not log.exists():
        return
    for line in _text(log, tail).splitlines():
        found = _RECORD.search(line)
        if found and found[1] in kinds:
            numbers = metrics_of(found[2])
            if numbers is not None:
                yield found[1], numbers


def training_seconds(log: Path) -> float:
    """Return the seconds that a training spent in updates; of an epoch that was repeated, only the last time counts."""
    # fairseq rounds to whole seconds. An epoch's record has the sum over its updates, also over those before an
    # interruption; a sum over "train_inner", of few updates each, would be wrong by up to half a second for each.
    epochs = {record.get("epoch"): record.get("train_train_wall", 0.0) for _, record in log_records(log, ["train"])}
    return sum(epochs.values())


def last_attempt(log: Path, tail: bool = False) -> str:
    """Return the last attempt in a log, from its command line on ("" if there is none); ``tail`` reads only the end."""
    text = _text(log, tail) if log.exists() else ""
    return text[max(0, text.rfind("\n$ ")) :]


def _text(log: Path, tail: bool) -> str:
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES) if tail else 0)
        return stream.read().decode("utf-8", errors="replace")


def last_line(log: Path) -> str:
    """Return the line that best explains how a log ended: the last exception, or else the last line."""
    lines = [line.strip() for line in last_attempt(log, tail=True).splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    # While fairseq looks for the cause of a divergence, another error may occur.
    diverged = [line for line in raised if line.startswith("FloatingPointError")]
    return ([*lines, *raised, *diverged] or ["no output"])[-1][:300]


def is_divergence(reason: str) -> bool:
    """Return whether the reason for a failure is divergence: a non-finite loss or a FloatingPointError."""
    return reason.startswith("diverged") or "FloatingPointError" in reason


def best_validation(log: Path, metric: str, metrics: Sequence[str], subsets: Sequence[str]) -> dict[str, Any]:
    """Return the best validation of a successful fine-tuning run, the one for which checkpoint_best.pt was saved.

    Args:
        log: the run's log.
        metric: the metric to compare on the first validation set (larger is better; the last of equal values wins).
        metrics: the metrics to return.
        subsets: the validation sets.

    Returns:
        A dict with ``score``, the metric on the first validation set; ``scores``, the metric on each set; ``figures``,
        metric -> value on all sets, where names for later sets begin with the set's name; ``epoch`` and ``updates`` at
        this validation; ``seconds``, the duration of the last attempt.

    Raises:
        ValueError: the training diverged, or there is no such metric.
    """
    rounds: dict[float, dict[str, float]] = {}
    seconds = 0.0
    for kind, record in log_records(log, ["train_inner", "train", *subsets]):
        loss = record.get("loss", record.get(f"{kind}_loss", 0.0))
        if not math.isfinite(loss):
            raise ValueError(f"diverged: the loss was {loss} ({kind}, epoch {record.get('epoch', 0):.0f})")
        if kind == "train":
            seconds = record.get("train_wall", seconds)
        elif kind in subsets:
            # A validation that is repeated, because the run was stopped right after it, counts once.
            rounds.setdefault(record.get(f"{kind}_num_updates", 0.0), {}).update(record)
    key = f"{subsets[0]}_{metric}"
    known = {updates: record for updates, record in rounds.items() if key in record}
    if not known:
        raise ValueError(f"no {key} in the log")
    finite = {updates: record for updates, record in known.items() if math.isfinite(record[key])}
    if not finite:
        raise ValueError(f"diverged: {key} was not finite in any validation")
    updates, best = max(finite.items(), key=lambda item: (item[1][key], item[0]))
    figures = {
        f"{'' if subset == subsets[0] else f'{subset}_'}{name}": best[f"{subset}_{name}"]
        for subset in subsets
        for name in metrics
        if f"{subset}_{name}" in best
    }
    return {
        "score": best[key],
        "scores": [best[f"{subset}_{metric}"] for subset in subsets if f"{subset}_{metric}" in best],
        "figures": figures,
        "epoch": int(best.get("epoch", 0)),
        "updates": int(updates),
        "seconds": seconds,
    }
