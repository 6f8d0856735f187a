"""Validation on its own view of a split, and --max-valid-steps as a fixed sample of the batches.

Reasons: fairseq keeps one dataset for each split, so that a split that is trained on and validated on
(``--valid-subset valid,train``) is validated with training's random numbers. With --max-valid-steps fairseq leaves its
loop before the batches end: a thread, the data loader and its workers stay for the rest of the run, and every
validation adds more. It also measures the first batches, those with the shortest sequences, and one more than asked
for. Here an iterator for validation has only the batches to measure, evenly spaced in the order of all of them.
Tests: tests/fairseq_fixes/test_validation.py, and tests/end_to_end/test_splits.py through the command.
"""

import copy
import functools
from typing import Any

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.replacements import replaces

_get_valid_iterator = Trainer.get_valid_iterator


@replaces(Trainer, "get_valid_iterator")
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
