"""The result type of ``predict_input`` for all kinds of fine-tuning tasks, and tables of predictions."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fairseq_maelm.finetuning.dataset_metrics import compute_metrics
from fairseq_maelm.finetuning.tables import Example
from fairseq_maelm.models.labels import Classes, Numbers

logger = logging.getLogger(__name__)


class Predicted(NamedTuple):
    """The predictions for one input."""

    text: str  # the predictions in the command's output format
    metrics: Mapping[str, float] | None  # None for an input without labels
    right: Sequence[Any] = ()  # the right labels of examples or words, or tuples of labels, for a report on each class
    labels: Sequence[Any] = ()  # their predicted labels


def predict_rows(
    examples: Sequence[Example],
    run: Callable[[list[tuple[str, ...]]], Tensor],
    labels: Classes | Numbers,
    metrics: Sequence[str],
) -> Predicted:
    """Predict the rows of a table; rows without any text get no prediction.

    Args:
        examples: the rows.
        run: function from n texts or pairs to scores <float>[n, outputs].
        labels: what the outputs stand for.
        metrics: names of the metrics, for a table with labels.
    """
    filled = [example for example in examples if any(example.texts)]
    empty = [example.place for example in examples if not any(example.texts)]
    if not filled:
        raise ValueError(f"{examples[0].place} and all rows after it have no text")
    if empty:
        logger.warning("%d rows have no text and get no prediction; the first: %s", len(empty), empty[0])
    targets = None
    if filled[0].label is not None:
        targets = np.array([labels.target(each.label, each.place) for each in filled])
    scores = run([example.texts for example in filled])
    cells, blank = iter(labels.cells(scores)), [""] * len(labels.columns)
    lines = [[*labels.columns, *_own_columns(filled[0])]]
    for each in examples:
        given = [*([] if each.id is None else [" ".join(each.id.split())]), *each.texts]
        lines.append([*(next(cells) if any(each.texts) else blank), *given])
    return measured(table_text(lines), scores, targets, labels, metrics)


def _own_columns(example: Example) -> list[str]:
    """Return the names of the columns that are copied from the table."""
    return [*([] if example.id is None else ["id"]), *("text", "text_pair")[: len(example.texts)]]


def measured(text: str, scores: Tensor, targets: Any, labels: Classes | Numbers, metrics: Sequence[str]) -> Predicted:
    """Return ``text`` with metrics.

    ``targets`` are class indices or numbers [n], or sets <bool>[n, classes]; None without labels. The rest is as in
    ``predict_rows``.
    """
    if targets is None:
        return Predicted(text, None)
    found = labels.found(scores).numpy()
    values = compute_metrics(metrics, targets, found, labels.positive_class)
    return Predicted(text, values, labels.named(targets), labels.named(found))


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Join rows into lines, with tabs between cells and white space collapsed inside them."""
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
