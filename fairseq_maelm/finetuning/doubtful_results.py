"""Warn about results that a constant answer would also reach, and report on each class."""

import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE

logger = logging.getLogger(__name__)

# Metrics that are 0, or undefined, for constant predictions.
_ABOVE_ZERO = ("mcc", "f1", "pearson", "spearman", "HasAns_f1", "micro_f1", "macro_f1")
# Those of them with the interval of a correlation.
_CORRELATIONS = ("mcc", "pearson", "spearman")
# If a result can be so many points higher by chance, it does not show that nothing was learned.
_MARGIN = 10.0
_ROUNDING = 1e-3  # in logs and checkpoints, in percent
# If all labels are integers and there are more classes than this, they are probably numbers to predict.
_MOST_INTEGERS = 20
_MOST_CONFUSED = 20  # the largest number of classes whose confusions fit into a terminal
_SHOWN = 5  # the largest number of labels to name

START = "frozen_start"  # name of what a task's state tells about the start of its head

_REMEDY = "try other learning rates, more epochs or more examples"
_TOO_FEW = "only more examples to validate on can tell"


def report_on_training(save_dir: Path, task: Path) -> None:
    """Log how many examples of a prepared folder gave the best checkpoint its score, or warn if it is doubtful."""
    best, manifest = save_dir / "checkpoint_best.pt", task / MANIFEST_FILE
    if not (best.is_file() and manifest.is_file()):
        return
    from fairseq_maelm.checkpoints.reader import read_checkpoint  # imports torch

    checkpoint, content = read_checkpoint(best), read_json(manifest)
    splits, config = content.get("splits", {}), checkpoint.config
    facts = splits.get(str(config.dataset.get("valid_subset", "valid")).split(",")[0], {})
    name, value = str(config.checkpoint.best_checkpoint_metric), checkpoint.state["extra_state"].get("best")
    sets, labels = "label_separator" in content, facts.get("labels", {})
    if value is not None:
        score, rows = float(value), facts.get("questions") or facts.get("examples") or sum(labels.values())
        if "impossible" in facts:
            doubt = _doubt_about_answers(name, score, rows, 100.0 * facts["impossible"] / rows)
        else:
            # Balanced classes are not trained for accuracy.
            balanced = (config.get("criterion") or {}).get("class_weights") == "balanced"
            doubt = doubt_about({name: score}, {} if balanced else labels, rows)
        said = doubt or (f"{name} {score:.1f} is from {rows:,} validation examples" if rows else "")
        if name == "accuracy" and rows and not doubt:
            said += " (95 % interval: {:.1f} to {:.1f})".format(*interval(score, rows))
        if said:
            logger.log(logging.WARNING if doubt else logging.INFO, "%s: %s%s", best, said, _about_start(checkpoint))
    train = splits.get(str(config.dataset.get("train_subset", "train")), {}).get("labels", {})
    if labels and (unseen := sorted(train.keys() - labels.keys())):
        shown = ", ".join(map(repr, unseen[:_SHOWN])) + f" and {len(unseen) - _SHOWN} more" * (len(unseen) > _SHOWN)
        logger.warning("no validation example has the label %s: the score says nothing about it", shown)
    if not sets and (doubt := numbers_as_classes(content.get("labels") or [])):
        logger.warning("%s: %s", best, doubt)


def _about_start(checkpoint: Any) -> str:
    """Return what else a small run says about new examples: whether its score chose the weights, and the start's."""
    said = "; the same examples chose the mixture of weights" if checkpoint.config.task.get("mix_start") else ""
    start = (checkpoint.state.get("task_state") or {}).get(START)
    return f"{said}; {start}" if isinstance(start, str) else said


def interval(score: float, rows: int) -> tuple[float, float]:
    """Return the 95 % interval (Clopper and Pearson, 1934) of a share in percent that was measured on so many rows."""
    from scipy.stats import binomtest  # takes a second

    low, high = binomtest(round(min(score, 100.0) / 100 * rows), rows).proportion_ci()
    return 100 * float(low), 100 * float(high)


def _doubt_about_share(name: str, score: float, rows: int, constant: float, answer: str) -> str | None:
    """Return a warning if a share may be no higher than that of a constant answer, both in percent."""
    low, high = interval(score, rows)
    if low > constant:
        return None
    if score <= constant + _ROUNDING and high <= constant + min(_MARGIN, (100 - constant) / 2):
        return (
            f"{name} {score:.1f} % on {rows:,} examples is not higher than the {constant:.1f} % of {answer}: {_REMEDY}"
        )
    return (
        f"{name} {score:.1f} % on {rows:,} examples may be chance, because the 95 % interval, {low:.1f} to {high:.1f}, "
        f"includes the {constant:.1f} % of {answer}: {_TOO_FEW}"
    )


def _doubt_about_answers(name: str, value: float, rows: int, share: float) -> str | None:
    if value > share + _ROUNDING:
        return None
    return _doubt_about_share(name, value, rows, share, "a model that never gives an answer")


def doubt_about(found: Mapping[str, float], right: Iterable[Hashable], rows: int = 0) -> str | None:
    """Return a warning if a constant answer may reach the same metrics (by name, in percent), otherwise None.

    ``right`` has the right label of each of ``rows`` examples (default: as many as labels), or is a dict label ->
    number of examples; it is empty for regression.
    """
    counts = Counter(right)
    rows = rows or counts.total()
    if "accuracy" in found and len(counts) > 1:
        ((label, count),) = counts.most_common(1)
        share = 100 * count / counts.total()
        if doubt := _doubt_about_share("accuracy", found["accuracy"], rows, share, f"always answering {label!r}"):
            return doubt
    # Correlations with a single class are 0 whatever is predicted.
    for name in _ABOVE_ZERO if len(counts) != 1 else ():
        if name in found and not found[name] > 0.0:
            if rows and _highest(name, found[name], rows) > _MARGIN:
                return f"{name} {found[name]:.1f} on {rows:,} examples may be chance: {_TOO_FEW}"
            return f"{name} is {found[name]:.1f}, as for a model that has learned nothing: {_REMEDY}"
    return None


def _highest(name: str, score: float, rows: int) -> float:
    """Return the end of the 95 % interval of a metric that is not positive, in percent; NaN for NaN."""
    if name not in _CORRELATIONS or not math.isfinite(score):
        return interval(0.0, rows)[1] if score == 0.0 else score
    # Fisher's transformation; no interval of three examples has an end.
    error = 1.96 / math.sqrt(rows - 3) if rows > 3 else math.inf
    return 100 * math.tanh(math.atanh(max(score, -99.9) / 100) + error)


def numbers_as_classes(labels: Sequence[str]) -> str | None:
    """Return a warning if the labels look like numbers for regression and not like classes, otherwise None."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return None
    if not all(map(math.isfinite, numbers)):
        return None
    if len(labels) <= _MOST_INTEGERS and all(number.is_integer() for number in numbers):
        return None
    return (
        f"the {len(labels)} labels are numbers, but each of them becomes a class: give --regression to predict numbers"
    )


def report_on_classes(right: Sequence[Any], predicted: Sequence[Any]) -> str:
    """Return a table of each class's precision, recall and F1 and, for few classes but not for sets, confusions."""
    from sklearn import metrics, preprocessing  # takes a second

    if isinstance(right[0], tuple):
        binarizer = preprocessing.MultiLabelBinarizer().fit([*right, *predicted])
        sets, names = map(binarizer.transform, (right, predicted)), list(binarizer.classes_)
        return f"{metrics.classification_report(*sets, target_names=names, digits=3, zero_division=0)}\n"
    names = sorted({*right, *predicted})
    report: Any = metrics.classification_report(right, predicted, labels=names, digits=3, zero_division=0)
    text = f"{report}\n"
    if 1 < len(names) <= _MOST_CONFUSED:
        counts = metrics.confusion_matrix(right, predicted, labels=names)
        rows = [[name, *row] for name, row in zip(names, counts.tolist())]
        text += tabulate(rows, ["right, predicted as:", *names], disable_numparse=True) + "\n"
    return text
