"""Batches that contain every example, in training and validation.

Reason: ``fairseq.data.data_utils.batch_by_size``, which all datasets use, silently drops the end of the last batch if
its size is not a multiple of --required-batch-size-multiple (8 by default): up to 7 examples of each split, even in
validation. And fairseq-validate, unlike fairseq-train, fails on a rank that has fewer batches than the others.
In training with --update-freq, fairseq ignores the loss and the number of tokens of such a rank's whole update, but not
the gradient of its other batches: in the last update of an epoch the gradient is too large, by a factor of up to the
number of ranks. Such a rank makes its update without the missing batches. With --ddp-backend fully_sharded it cannot,
since ranks exchange weights in every batch; it begins with dummy batches, which count for nothing, because fairseq
looks at the last batch alone to ignore an update.
Tests: tests/fairseq_fixes/test_incomplete_batches.py and, for training, tests/end_to_end/test_distributed.py.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from fairseq.data import data_utils
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.replacements import replaces

_without_remainder = data_utils.batch_by_size
_step_of_a_batch = FairseqTask.valid_step
_reduce_outputs = FairseqTask.reduce_metrics
_train_step = Trainer.train_step
_train_step_of_a_batch = FairseqTask.train_step


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


@replaces(Trainer, "train_step")
@functools.wraps(_train_step)
def train_step(self: Trainer, samples: list[Any], raise_oom: bool = False) -> Any:
    """Make an update with this rank's batches; only if it has none, with one dummy batch, which fairseq ignores."""
    if self.is_fsdp:
        return _train_step(self, sorted(samples, key=bool), raise_oom)
    return _train_step(self, [sample for sample in samples if sample] or samples[:1], raise_oom)


@replaces(FairseqTask, "train_step")
@functools.wraps(_train_step_of_a_batch)
def train_step_of_a_batch(*args: Any, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Make the forward and backward pass of a batch; of a dummy batch, all that is counted is 0."""
    loss, size, output = _train_step_of_a_batch(*args, **options)
    if options.get("ignore_grad"):
        # Not an empty output: fairseq adds up the entries of a rank's first one.
        size, output = 0, {name: value * 0 for name, value in output.items()}
    return loss, size, output


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
