"""The result type of ``predict_input`` for all kinds of fine-tuning tasks, and tables of predictions."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.finetuning.tables import Example
from fairseq_maelm.models.labels import Classes, Numbers

logger = logging.getLogger(__name__)


class Predicted(NamedTuple):
    """The predictions for one input."""

    text: str  # the predictions in the command's output format
    metrics: Mapping[str, float] | None  # None for an input without labels
    right: Sequence[Any] = ()  # the right labels of examples or words, or tuples of labels, for a report on each class
    labels: Sequence[Any] = ()  # their predicted labels
    files: Mapping[Path, Any] = {}  # what else is written, as JSON


def predict_rows(
    examples: Sequence[Example], run: Callable[[list[tuple[str, ...]]], Tensor], labels: Classes | Numbers
) -> Predicted:
    """Predict the rows of a table that have a text; ``run`` turns n texts or pairs into scores <float>[n, outputs]."""
    filled = [example for example in examples if any(example.texts)]
    empty = [example.place for example in examples if not any(example.texts)]
    if not filled:
        raise ValueError(f"{examples[0].place} and all rows after it have no text")
    if empty:
        logger.warning("%d rows have no text and get no prediction; the first: %s", len(empty), empty[0])
    first, targets = filled[0], None
    if first.label is not None:
        targets = np.array([labels.target(each.label, each.place) for each in filled])
    scores = run([example.texts for example in filled])
    cells, blank = iter(labels.cells(scores)), [""] * len(labels.columns)
    # Ids and texts are copied from the table.
    lines = [[*labels.columns, *([] if first.id is None else ["id"]), *("text", "text_pair")[: len(first.texts)]]]
    for each in examples:
        given = [*([] if each.id is None else [" ".join(each.id.split())]), *each.texts]
        lines.append([*(next(cells) if any(each.texts) else blank), *given])
    return measured(table_text(lines), scores, targets, labels)


def measured(text: str, scores: Tensor, targets: NDArray[Any] | None, labels: Classes | Numbers) -> Predicted:
    """Return ``text`` with the metrics of ``scores``; ``targets`` are those of ``labels``, None for data without."""
    if targets is None:
        return Predicted(text, None)
    found = labels.in_units(labels.found(scores)).numpy()
    return Predicted(text, labels.measure(targets, found), labels.named(targets), labels.named(found))


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Join rows into lines, with tabs between cells and white space collapsed inside them."""
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
