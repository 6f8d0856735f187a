"""A task stops the training: no more data, nothing saved, and no effect on the next run of the process."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from fairseq import checkpoint_utils
from fairseq.data.iterators import CountingIterator, GroupedIterator
from fairseq.trainer import Trainer

import fairseq_maelm
from fairseq_maelm.fairseq_fixes import stopping

fairseq_maelm.register()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the calls of fairseq's own functions instead of running them."""
    asked: list[str] = []
    monkeypatch.setattr(stopping._Run, "stopped", False)
    monkeypatch.setattr(stopping, "_get_train_iterator", lambda *_, **__: asked.append("epoch") or "an epoch")
    monkeypatch.setattr(stopping, "_save_checkpoint", lambda *_, **__: asked.append("save") or "a file")
    yield asked


class SomeTrainer:
    """Takes the place of a trainer."""


def new_run() -> Any:
    """Return a trainer that has asked for its first epoch, as each run does when it loads a checkpoint."""
    trainer = SomeTrainer()
    assert Trainer.get_train_iterator(trainer, 1) == "an epoch"
    return trainer


def test_the_data_ends_and_nothing_is_saved(clean: list[str]) -> None:
    trainer = new_run()
    updates = GroupedIterator(CountingIterator(range(7)), 2)
    assert next(updates) == [0, 1] and updates.has_next()
    assert checkpoint_utils.save_checkpoint("cfg", trainer) == "a file"
    clean.clear()
    stopping.stop_training("of a test")
    assert not updates.has_next() and list(updates) == [], "in the middle of an epoch, without an error"
    assert checkpoint_utils.save_checkpoint("cfg", trainer) is None
    assert not Trainer.get_train_iterator(trainer, 2).next_epoch_idx <= math.inf, "fairseq's limit without --max-epoch"
    assert clean == []


def test_the_next_run_of_the_process_is_not_stopped() -> None:
    trainer = new_run()
    stopping.stop_training("of a test")
    other = new_run()
    assert list(GroupedIterator(CountingIterator(range(3)), 2)) == [[0, 1], [2]]
    assert checkpoint_utils.save_checkpoint("cfg", other) == "a file"
    assert Trainer.get_train_iterator(other, 2) == "an epoch"
    assert trainer is not other


def test_a_validation_that_is_under_way_goes_on() -> None:
    stopping.stop_training("of a test")
    assert list(CountingIterator(range(3))) == [0, 1, 2], "sets that are validated later are not grouped"
