"""The result type of ``predict_input`` for all kinds of fine-tuning tasks, and tables of predictions."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fairseq_maelm.finetuning.dataset_metrics import compute_metrics
from fairseq_maelm.finetuning.tables import Example

logger = logging.getLogger(__name__)


class Predicted(NamedTuple):
    """The predictions for one input."""

    text: str  # the predictions in the command's output format
    metrics: Mapping[str, float] | None  # None for an input without labels
    right: Sequence[Any] = ()  # the right labels of examples or words, or tuples of labels, for a report on each class
    labels: Sequence[Any] = ()  # their predicted labels


class Measure(NamedTuple):
    """A text task's metrics."""

    names: Sequence[str]
    positive: int | None  # class, for F1
    target: Callable[[Any, str], Any]  # function(label, place for error messages) -> class index, number or set
    separator: str | None = None  # character between the labels of an example; None if it has one


def predict_rows(
    examples: Sequence[Example],
    run: Callable[[list[tuple[str, ...]]], Tensor],
    labels: Sequence[str] | None,
    measure: Measure,
) -> Predicted:
    """Predict the rows of a table; rows without any text get no prediction.

    Args:
        examples: the rows.
        run: function from n texts or pairs to logits <float>[n, classes] or numbers <float>[n].
        labels: names of the classes; None for numbers.
        measure: the metrics, for a table with labels.
    """
    filled = [example for example in examples if any(example.texts)]
    empty = [example.place for example in examples if not any(example.texts)]
    if not filled:
        raise ValueError(f"{examples[0].place} and all rows after it have no text")
    if empty:
        logger.warning("%d rows have no text and get no prediction; the first: %s", len(empty), empty[0])
    outputs = run([example.texts for example in filled])
    cells = iter(prediction_cells(outputs, labels, measure.separator))
    lines = [prediction_header(labels, filled[0], measure.separator)]
    blank = [""] * len(prediction_header(labels, separator=measure.separator))
    for each in examples:
        given = [*([] if each.id is None else [" ".join(each.id.split())]), *each.texts]
        lines.append([*(next(cells) if any(each.texts) else blank), *given])
    text = table_text(lines)
    if filled[0].label is None:
        return Predicted(text, None)
    targets = np.array([measure.target(each.label, each.place) for each in filled])
    return measured(text, outputs, targets, labels, measure)


def measured(text: str, outputs: Tensor, targets: Any, labels: Sequence[str] | None, measure: Measure) -> Predicted:
    """Return ``text`` with metrics.

    ``targets`` are class indices or numbers [n], or sets <bool>[n, classes]; the rest is as in ``predict_rows``.
    """
    sets = measure.separator is not None
    found = (outputs if labels is None else outputs >= 0 if sets else outputs.argmax(dim=-1)).numpy()
    metrics = compute_metrics(measure.names, targets, found, measure.positive)
    if labels is None:
        return Predicted(text, metrics)
    if sets:
        names = np.array(labels)
        return Predicted(text, metrics, *([tuple(names[row].tolist()) for row in rows] for rows in (targets, found)))
    right, predicted = ([labels[int(number)] for number in numbers] for numbers in (targets, found))
    return Predicted(text, metrics, right, predicted)


def prediction_header(
    labels: Sequence[str] | None, example: Example | None = None, separator: str | None = None
) -> list[str]:
    """Return the column names: first those of ``prediction_cells``, then "id" and the texts of the example."""
    best = ["label", "probability"] if separator is None else ["labels"]
    own = ["value"] if labels is None else [*best, *(f"P({label})" for label in labels)]
    if example is None:
        return own
    return [*own, *([] if example.id is None else ["id"]), *("text", "text_pair")[: len(example.texts)]]


def prediction_cells(
    outputs: Tensor, labels: Sequence[str] | None, separator: str | None = None
) -> Iterable[list[str]]:
    """Yield each output's cells: the number; or the best label, its probability, and all labels' probabilities.

    With a ``separator``, the first cell has all labels with a probability of at least 0.5, and the second is left out.
    """
    if labels is None:
        yield from ([f"{value:.6g}"] for value in outputs.tolist())
        return
    if separator is not None:
        for row in outputs.double():
            chosen = separator.join(label for label, there in zip(labels, row >= 0) if there)
            yield [chosen, *(f"{probability:.4f}" for probability in row.sigmoid().tolist())]
        return
    for row in outputs.double().softmax(dim=-1).tolist():
        best = max(range(len(labels)), key=row.__getitem__)
        yield [labels[best], *(f"{probability:.4f}" for probability in (row[best], *row))]


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Join rows into lines, with tabs between cells and white space collapsed inside them."""
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
