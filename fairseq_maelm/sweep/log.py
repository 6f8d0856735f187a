"""What fairseq-train wrote into its log with ``--log-format json``."""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["best_validation", "is_divergence", "last_line", "log_records"]

_RECORD = re.compile(r"\| INFO \| (\S+) \| (\{.*\})\s*$")
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b")
_TAIL_BYTES = 65536


def log_records(log: Path, kinds: Sequence[str], tail: bool = False) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield kind and metrics of the records in a log, of the metrics those that are numbers.

    Args:
        log: may be missing, or still be written.
        kinds: of record: "train_inner", "train", or the name of a validation set.
        tail: look at the end of the log only.
    """
    if not log.exists():
        return
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES) if tail else 0)
        for line in stream.read().decode("utf-8", errors="replace").splitlines():
            found = _RECORD.search(line)
            if found and found[1] in kinds:
                with contextlib.suppress(json.JSONDecodeError):
                    yield found[1], _numbers(json.loads(found[2]))


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in record.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = float(value)
    return numbers


def last_line(log: Path) -> str:
    """The line of a log that says best why its program stopped: the last one that names an exception, or the last."""
    lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    # fairseq looks for the cause of a divergence, and may come upon another error on the way.
    diverged = [line for line in raised if line.startswith("FloatingPointError")]
    return ([*lines, *raised, *diverged] or ["no output"])[-1][:300]


def _tail(log: Path) -> str:
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = stream.read().decode("utf-8", errors="replace")
    # An earlier attempt's exception says nothing about the last.
    return text[max(0, text.rfind("\n$ ")) :]


def is_divergence(reason: str) -> bool:
    """Whether a run without a result diverged: its loss left the numbers, or fairseq stopped it because of that."""
    return reason.startswith("diverged") or "FloatingPointError" in reason


def best_validation(log: Path, metric: str, metrics: Sequence[str], subsets: Sequence[str]) -> dict[str, Any]:
    """The result of a fine-tuning: its best validation, which is also what checkpoint_best.pt holds.

    Args:
        log: of a run that ended well.
        metric: to compare by, on the first validation set; larger is better, the later of equals counts.
        metrics: names to take.
        subsets: the validation sets.

    Returns:
        ``score``, the metric on the first validation set, and ``scores``, on each; ``figures``, name -> value, with
        the set's name in front for all sets but the first; ``epoch`` and ``updates`` of that validation; ``seconds``
        that the last attempt took.

    Raises:
        ValueError: the training diverged, or there is no such metric.
    """
    rounds: dict[float, dict[str, float]] = {}
    seconds = 0.0
    for kind, record in log_records(log, ["train_inner", "train", *subsets]):
        _check_loss(kind, record)
        if kind == "train":
            seconds = record.get("train_wall", seconds)
        elif kind in subsets:
            # A round that was done twice, because the run was stopped right after it, counts once.
            rounds.setdefault(record.get(f"{kind}_num_updates", 0.0), {}).update(record)
    key = f"{subsets[0]}_{metric}"
    known = {updates: record for updates, record in rounds.items() if key in record}
    if not known:
        raise ValueError(f"no {key} in the log")
    finite = {updates: record for updates, record in known.items() if math.isfinite(record[key])}
    if not finite:
        raise ValueError(f"diverged: {key} was no number in any validation")
    updates, best = max(finite.items(), key=lambda item: (item[1][key], item[0]))
    return {
        "score": best[key],
        "scores": [best[f"{subset}_{metric}"] for subset in subsets if f"{subset}_{metric}" in best],
        "figures": _chosen(best, metrics, subsets),
        "epoch": int(best.get("epoch", 0)),
        "updates": int(updates),
        "seconds": seconds,
    }


def _check_loss(kind: str, record: dict[str, float]) -> None:
    loss = record.get("loss", record.get(f"{kind}_loss", 0.0))
    if not math.isfinite(loss):
        raise ValueError(f"diverged: the loss was {loss} ({kind}, epoch {record.get('epoch', 0):.0f})")


def _chosen(record: dict[str, float], metrics: Sequence[str], subsets: Sequence[str]) -> dict[str, float]:
    found = {}
    for subset in subsets:
        prefix = "" if subset == subsets[0] else f"{subset}_"
        found.update(
            {f"{prefix}{name}": record[f"{subset}_{name}"] for name in metrics if f"{subset}_{name}" in record}
        )
    return found
