"""A resumed run reads the rest of an epoch, with any number of ranks and any batch size."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

import fairseq_maelm
from fairseq_maelm.fairseq_fixes import resuming

fairseq_maelm.register()
ITEMS = 46


def batches_of(ranks: int, rank: int, size: int = 2, state: dict[str, Any] | None = None) -> EpochBatchIterator:
    items = torch.utils.data.TensorDataset(torch.arange(ITEMS))
    batches = [list(range(start, min(start + size, ITEMS))) for start in range(0, ITEMS, size)]
    made = EpochBatchIterator(items, lambda rows: [int(row[0]) for row in rows], batches, 1, ranks, rank)
    if state is not None:
        made.load_state_dict(state)
    return made


def state_after(ranks: int, iterations: int) -> tuple[dict[str, Any], list[int]]:
    """Return the state of the first rank after some batches on each rank, and the items that all ranks have read."""
    read: list[int] = []
    for rank in reversed(range(ranks)):
        made = batches_of(ranks, rank)
        itr = made.next_epoch_itr()
        for _ in range(iterations):
            read += next(itr)
    return made.state_dict(), read


def rest(ranks: int, state: dict[str, Any], size: int = 2) -> Iterator[int]:
    for rank in range(ranks):
        for batch in batches_of(ranks, rank, size, state).next_epoch_itr():
            yield from batch


@pytest.mark.parametrize(("before", "iterations"), [(1, 12), (3, 4), (4, 3)])
@pytest.mark.parametrize("after", [1, 2, 3, 12])
def test_every_item_is_read_once_by_any_number_of_ranks(before: int, iterations: int, after: int) -> None:
    state, read = state_after(before, iterations)
    assert len(read) == 24
    assert sorted([*read, *rest(after, state)]) == list(range(ITEMS))


def test_items_are_repeated_rather_than_left_out() -> None:
    state, read = state_after(1, 13)
    others = list(rest(4, state))
    assert {*read, *others} == set(range(ITEMS)) and len(read) + len(others) == ITEMS + 2
    assert sorted(rest(64, state_after(1, 22)[0])) == list(range(ITEMS)), "less than a batch for each rank"


@pytest.mark.parametrize(("size", "number"), [(1, 22), (4, 22), (23, 23)])
def test_other_batches_continue_at_the_same_fraction(size: int, number: int) -> None:
    """12 of 23 batches have been read; of 46, 12 and 2 batches the same part is skipped, 24, 6 and 1."""
    assert len(list(rest(1, state_after(1, 12)[0], size))) == number


def test_a_state_of_fairseq_alone_counts_batches_of_each_rank() -> None:
    state = {"version": 2, "epoch": 1, "iterations_in_epoch": 5, "shuffle": True}
    assert len(list(rest(2, state))) == ITEMS - 20


@pytest.mark.parametrize("error", [AssertionError("Criterion does not match\n"), ValueError("not that of adam")])
def test_the_state_of_another_run_is_refused_in_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an error of the program is not taken for one of the checkpoint."""
    errors = [KeyError("a name"), error]
    monkeypatch.setattr(resuming, "load_with_average", lambda trainer, path: (_ for _ in ()).throw(errors.pop()))
    said = f"fairseq-train: error: training cannot continue from a.pt ({type(error).__name__}: {str(error).strip()})"
    with pytest.raises(SystemExit, match=f"^{re.escape(said)}$"):
        Trainer.load_checkpoint(object(), "a.pt")
    with pytest.raises(KeyError):
        Trainer.load_checkpoint(object(), "a.pt")
