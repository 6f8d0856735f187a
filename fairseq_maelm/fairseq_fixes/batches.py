"""Validation of every example, where fairseq's own way leaves some out.

Reason: ``fairseq.data.data_utils.batch_by_size`` drops the last batch where its size is no multiple of
--required-batch-size-multiple, which is 8 by default: up to 7 examples of every split, in validation too, without a
word. All datasets cut their batches by it, those of fairseq's own tasks as well. And fairseq-validate, unlike
fairseq-train, cannot do without a batch on a rank that has one batch less than others.
Test: tests/fairseq_fixes/test_batches.py.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from fairseq.data import data_utils
from fairseq.tasks import FairseqTask

_without_remainder = data_utils.batch_by_size
_step_of_a_batch = FairseqTask.valid_step
_reduce_outputs = FairseqTask.reduce_metrics


def batch_by_size(indices: Iterable[int], *args: Any, **kwargs: Any) -> list[Any]:
    """Cut ordered indices into fairseq's batches, and a last one of what fairseq would drop."""
    ordered = indices if isinstance(indices, np.ndarray) else np.fromiter(indices, dtype=np.int64)
    if not len(ordered):
        return []
    batches = list(_without_remainder(ordered, *args, **kwargs))
    # Other batches than the last one are never dropped, and batches follow the order of the indices.
    remainder = ordered[sum(len(batch) for batch in batches) :]
    return [*batches, remainder] if len(remainder) else batches


def valid_step(
    task: FairseqTask, sample: dict[str, Any], model: Any, criterion: Any, **options: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """Validate a batch; a rank that has no batch left returns an output with nothing in it."""
    if not sample:
        return 0.0, 0, {}
    return _step_of_a_batch(task, sample, model, criterion, **options)


def reduce_metrics(task: FairseqTask, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
    """Log the metrics of all batches but empty ones."""
    _reduce_outputs(task, [output for output in logging_outputs if output], criterion)


def keep_every_example() -> None:
    """Make fairseq validate by the functions of this module."""
    data_utils.batch_by_size = batch_by_size
    FairseqTask.valid_step = valid_step
    FairseqTask.reduce_metrics = reduce_metrics
