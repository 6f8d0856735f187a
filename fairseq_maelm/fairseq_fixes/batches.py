"""What a rank trains on and validates on.

In training with --update-freq, fairseq ignores the loss and the number of tokens of the whole update of a rank that has
fewer batches than the others, but not the gradient of the batches that it has: in the last update of an epoch the
gradient is too large, by a factor of up to the number of ranks. Here such a rank makes its update without the missing
batches. With --ddp-backend fully_sharded it cannot, since ranks exchange weights in every batch; it begins with dummy
batches, which count for nothing, because fairseq looks at the last batch alone to ignore an update.

fairseq keeps one dataset for each split, so that a split that is trained on and validated on
(``--valid-subset valid,train``) is validated with training's random numbers. With --max-valid-steps fairseq leaves its
loop before the batches end: a thread, the data loader and its workers stay for the rest of the run, and every
validation adds more. It also measures the first batches, those with the shortest sequences, and one more than asked
for. Here an iterator for validation has only the batches to measure, evenly spaced in the order of all of them.
Tests: tests/fairseq_fixes/test_batches.py; tests/end_to_end/test_distributed.py and test_splits.py.
"""

import copy
import functools
from typing import Any

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes import replaces

_train_step = Trainer.train_step
_get_valid_iterator = Trainer.get_valid_iterator


class TaskOnUnevenRanks(FairseqTask):
    """A task of fairseq's whose ranks may have different numbers of batches."""

    def train_step(self, *args: Any, ignore_grad: bool = False, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Make the forward and backward pass of a batch; of a dummy batch (``ignore_grad``), all that counts is 0."""
        loss, size, output = super().train_step(*args, ignore_grad=ignore_grad, **options)
        if ignore_grad:
            # Not an empty output: fairseq adds up the entries of a rank's first one.
            size, output = 0, {name: value * 0 for name, value in output.items()}
        return loss, size, output

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any, **options: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Validate a batch; return an empty output if this rank has no batch left, as in fairseq-validate."""
        return super().valid_step(sample, model, criterion, **options) if sample else (0.0, 0, {})

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Log the metrics of all non-empty outputs."""
        super().reduce_metrics([output for output in logging_outputs if output], criterion)


@replaces(
    Trainer,
    "train_step",
    why="with --update-freq and several GPUs, the last gradient of an epoch is too large, by up to the number of GPUs",
    acts_on="our tasks",
)
@functools.wraps(_train_step)
def _step_of_rank(self: Trainer, samples: list[Any], raise_oom: bool = False) -> Any:
    """Make an update with this rank's batches; only if it has none, with one dummy batch, which fairseq ignores."""
    if isinstance(self.task, TaskOnUnevenRanks):
        samples = sorted(samples, key=bool) if self.is_fsdp else [each for each in samples if each] or samples[:1]
    return _train_step(self, samples, raise_oom)


@replaces(
    Trainer,
    "get_valid_iterator",
    why="with --max-valid-steps validation covers only the shortest sequences, and leaves a thread and workers behind",
    acts_on="runs with --max-valid-steps; our tasks that validate on the training split",
    upstream="in part: the choice of batches",
)
@functools.wraps(_get_valid_iterator)
def get_valid_iterator(self: Trainer, subset: str, disable_iterator_cache: bool = False) -> Any:
    """Return the batches of a split to validate on; the same ones at every validation."""
    trained = self.task.datasets
    self.task.datasets = {**trained, **getattr(self.task, "validated", {})}
    try:
        batches = _get_valid_iterator(self, subset, disable_iterator_cache)
    finally:
        self.task.datasets = trained
    steps = self.cfg.dataset.max_valid_steps
    # fairseq's other iterators have no list of batches.
    return batches if steps is None or type(batches) is not EpochBatchIterator else _sample(batches, steps)


def _sample(batches: EpochBatchIterator, steps: int) -> EpochBatchIterator:
    if steps < 1:
        raise ValueError(f"--max-valid-steps must be at least 1, not {steps}")
    every, wanted = batches.frozen_batches, steps * batches.num_shards
    if wanted >= len(every):
        return batches
    # fairseq may keep its iterator, with its workers, for the next validation; those of a copy end with it.
    sample = copy.copy(batches)
    sample.persistent_workers = False
    # The middles of equal parts: as many short sequences as long ones, relative to the whole set.
    sample._frozen_batches = tuple(every[place] for place in (2 * np.arange(wanted) + 1) * len(every) // (2 * wanted))
    return sample
