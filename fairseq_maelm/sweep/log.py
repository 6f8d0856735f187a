"""Readers of the logs that fairseq-train writes with ``--log-format json``."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.launch.progress import metrics_of

_RECORD = re.compile(r"\| INFO \| (\S+) \| (\{.*\})\s*$")
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b")


def _text(log: Path) -> str:
    return log.read_bytes().decode("utf-8", errors="replace") if log.exists() else ""


def log_records(log: Path, kinds: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield kind ("train_inner", "train", a validation set) and metrics of a log's records; the log may be missing."""
    for line in _text(log).splitlines():
        found = _RECORD.search(line)
        if found and found[1] in kinds and (numbers := metrics_of(found[2])) is not None:
            yield found[1], numbers


def training_seconds(log: Path) -> float:
    """Return the seconds that a training spent in updates; of an epoch that was repeated, only the last time counts."""
    # fairseq rounds to whole seconds. An epoch's record has the sum over its updates, also over those before an
    # interruption; a sum over "train_inner", of few updates each, would be wrong by up to half a second for each.
    epochs = {record.get("epoch"): record.get("train_train_wall", 0.0) for _, record in log_records(log, ["train"])}
    return sum(epochs.values())


def last_line(log: Path) -> str:
    """Return the line that best explains how a log ended: the last attempt's last exception, or else its last line."""
    attempt = f"\n{_text(log)}".rpartition("\n$ ")
    lines = [line.strip() for line in "".join(attempt[1:]).splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    # While fairseq looks for the cause of a divergence, another error may occur.
    diverged = [line for line in raised if line.startswith("FloatingPointError")]
    return ([*lines, *raised, *diverged] or ["no output"])[-1][:300]


def is_divergence(reason: str) -> bool:
    """Return whether the reason for a failure is divergence: a non-finite loss or a FloatingPointError."""
    return reason.startswith("diverged") or "FloatingPointError" in reason


def best_validation(log: Path, metric: str, metrics: Sequence[str], subsets: Sequence[str]) -> dict[str, Any]:
    """Return the best validation of a successful fine-tuning run, the one for which checkpoint_best.pt was saved.

    ``metric`` is compared on the first of the validation sets (larger is better; the last of equal values wins). The
    result has it as ``score``, and on each set as ``scores``; the ``figures``, metric -> value on all sets, where names
    for later sets begin with the set's name; ``epoch`` and ``updates`` at this validation; and the ``seconds`` of the
    last attempt. Raise a ValueError if the training diverged, or there is no such metric.
    """
    rounds: dict[float, dict[str, float]] = {}
    seconds, key = 0.0, f"{subsets[0]}_{metric}"
    for kind, record in log_records(log, ["train_inner", "train", *subsets]):
        loss = record.get("loss", record.get(f"{kind}_loss", 0.0))
        if not math.isfinite(loss):
            raise ValueError(f"diverged: the loss was {loss} ({kind}, epoch {record.get('epoch', 0):.0f})")
        if kind == "train":
            seconds = record.get("train_wall", seconds)
        elif kind in subsets:
            # A validation that is repeated, because the run was stopped right after it, counts once.
            rounds.setdefault(record.get(f"{kind}_num_updates", 0.0), {}).update(record)
    known = {updates: record for updates, record in rounds.items() if key in record}
    if not known:
        raise ValueError(f"no {key} in the log")
    finite = {updates: record for updates, record in known.items() if math.isfinite(record[key])}
    if not finite:
        raise ValueError(f"diverged: {key} was not finite in any validation")
    updates, best = max(finite.items(), key=lambda item: (item[1][key], item[0]))
    names = {
        f"{'' if subset == subsets[0] else f'{subset}_'}{each}": f"{subset}_{each}"
        for subset in subsets
        for each in metrics
    }
    return {
        "score": best[key],
        "scores": [best[f"{subset}_{metric}"] for subset in subsets if f"{subset}_{metric}" in best],
        "figures": {name: best[logged] for name, logged in names.items() if logged in best},
        "epoch": int(best.get("epoch", 0)),
        "updates": int(updates),
        "seconds": seconds,
    }
