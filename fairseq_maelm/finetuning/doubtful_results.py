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
# A result by so many standard errors above a constant answer is hardly chance.
_STANDARD_ERRORS = 2
# Rounding in logs and checkpoints, in percent.
_ROUNDING = 1e-3
# If all labels are integers and there are more classes than this, they are probably numbers to predict.
_MOST_INTEGERS = 20
# The largest number of classes whose confusions fit into a terminal.
_MOST_CONFUSED = 20

_REMEDY = "try other learning rates, more epochs or more examples"


def warn_about_training(save_dir: Path, task: Path) -> None:
    """Log a warning if a constant answer would be as good as the best checkpoint of a fine-tuning run.

    Args:
        save_dir: folder of the checkpoints.
        task: prepared folder.
    """
    best, manifest = save_dir / "checkpoint_best.pt", task / MANIFEST_FILE
    if not (best.is_file() and manifest.is_file()):
        return
    from fairseq_maelm.checkpoints.reader import read_checkpoint  # imports torch

    checkpoint, content = read_checkpoint(best), read_json(manifest)
    subset = str(checkpoint.config.dataset.get("valid_subset", "valid")).split(",")[0]
    facts = content.get("splits", {}).get(subset, {})
    name, value = str(checkpoint.config.checkpoint.best_checkpoint_metric), checkpoint.state["extra_state"].get("best")
    doubts = [None if "label_separator" in content else numbers_as_classes(content.get("labels") or [])]
    if value is not None and "impossible" in facts:
        doubts.append(_doubt_about_answers(name, value, 100.0 * facts["impossible"] / facts["questions"]))
    elif value is not None:
        doubts.append(doubt_about({name: value}, facts.get("labels", {})))
    for doubt in filter(None, doubts):
        logger.warning("%s: %s", best, doubt)


def _doubt_about_answers(name: str, value: float, share: float) -> str | None:
    if value > share + _ROUNDING:
        return None
    return f"{name} is {value:.1f}, not higher than the {share:.1f} of a model that never gives an answer: {_REMEDY}"


def doubt_about(found: Mapping[str, float], right: Iterable[Hashable]) -> str | None:
    """Return a warning if a constant answer would reach the same metrics, otherwise None.

    Args:
        found: metrics by name, in percent.
        right: the right label of each example, or a dict label -> number of examples; empty for regression.
    """
    counts = Counter(right)
    if "accuracy" in found and counts:
        (label, count), *others = counts.most_common(2)
        share, rows = count / counts.total(), counts.total()
        constant = f"{100 * share:.1f} % of always answering {label!r}"
        if found["accuracy"] <= 100 * share + _ROUNDING and others:
            return f"the accuracy of {found['accuracy']:.1f} % is not higher than the {constant}: {_REMEDY}"
        chance = 100 * _STANDARD_ERRORS * math.sqrt(share * (1 - share) / rows)
        if found["accuracy"] <= 100 * share + chance and others:
            return (
                f"the accuracy of {found['accuracy']:.1f} % may be chance: on {rows} examples, only more than "
                f"{100 * share + chance:.1f} % would clearly be better than the {constant}. Use more examples"
            )
    # Correlations with a single class are 0 whatever is predicted.
    for name in _ABOVE_ZERO if len(counts) != 1 else ():
        if name in found and not found[name] > 0.0:
            return f"{name} is {found[name]:.1f}, as for a model that has learned nothing: {_REMEDY}"
    return None


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
    """Return a table with each class's precision, recall and F1 and, for few classes, the confusion matrix.

    Sets of labels (tuples) have no confusion matrix.
    """
    from sklearn import metrics, preprocessing  # takes a second

    if isinstance(right[0], tuple):
        binarizer = preprocessing.MultiLabelBinarizer().fit([*right, *predicted])
        sets, names = map(binarizer.transform, (right, predicted)), list(binarizer.classes_)
        return f"{metrics.classification_report(*sets, target_names=names, digits=3, zero_division=0)}\n"
    names = sorted({*right, *predicted})
    report: Any = metrics.classification_report(right, predicted, labels=names, digits=3, zero_division=0)
    text = f"{report}\n"
    if len(names) <= _MOST_CONFUSED:
        counts = metrics.confusion_matrix(right, predicted, labels=names)
        rows = [[name, *row] for name, row in zip(names, counts.tolist())]
        text += tabulate(rows, ["right, predicted as:", *names], disable_numparse=True) + "\n"
    return text
