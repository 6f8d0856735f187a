"""Batches that contain every example, in training and validation.

Reason: ``fairseq.data.data_utils.batch_by_size``, which all datasets use, silently drops the end of the last batch if
its size is not a multiple of --required-batch-size-multiple (8 by default): up to 7 examples of each split, even in
validation. And fairseq-validate, unlike fairseq-train, fails on a rank that has fewer batches than the others.
Test: tests/fairseq_fixes/test_incomplete_batches.py.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from fairseq.data import data_utils
from fairseq.tasks import FairseqTask

from fairseq_maelm.fairseq_fixes.replacements import replaces

_without_remainder = data_utils.batch_by_size
_step_of_a_batch = FairseqTask.valid_step
_reduce_outputs = FairseqTask.reduce_metrics


@replaces(data_utils, "batch_by_size")
def batch_by_size(indices: Iterable[int], *args: Any, **kwargs: Any) -> list[Any]:
    """Split indices into batches as fairseq does, and put the indices that fairseq would drop into a last batch."""
    ordered = indices if isinstance(indices, np.ndarray) else np.fromiter(indices, dtype=np.int64)
    if not len(ordered):
        return []
    batches = list(_without_remainder(ordered, *args, **kwargs))
    # fairseq drops only from the end, and its batches follow the order of the indices.
    remainder = ordered[sum(len(batch) for batch in batches) :]
    return [*batches, remainder] if len(remainder) else batches


@replaces(FairseqTask, "valid_step")
def valid_step(
    task: FairseqTask, sample: dict[str, Any], model: Any, criterion: Any, **options: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """Validate a batch; return an empty output if this rank has no batch left."""
    if not sample:
        return 0.0, 0, {}
    return _step_of_a_batch(task, sample, model, criterion, **options)


@replaces(FairseqTask, "reduce_metrics")
def reduce_metrics(task: FairseqTask, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
    """Log the metrics of all non-empty outputs."""
    _reduce_outputs(task, [output for output in logging_outputs if output], criterion)
