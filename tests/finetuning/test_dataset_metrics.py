"""Metrics of a whole validation set, collected over batches and ranks."""

import pytest
from fairseq.logging import metrics

from fairseq_maelm.finetuning.dataset_metrics import log_collected


def share_of_ones(rows):
    """A metric and its square, which is not a mean over batches."""
    share = sum(rows.values()) / len(rows)
    return {"share": share, "square": share**2}


@pytest.mark.parametrize(
    "batches", [[[(0, 1), (1, 0)], [(2, 1), (3, 1)]], [[(0, 1), (1, 0)], [(1, 0), (2, 1), (3, 1)]]]
)
def test_metrics_are_those_of_all_rows_each_counted_once(batches):
    with metrics.aggregate(new_root=True) as validation:
        for rows in batches:
            log_collected(rows, share_of_ones, ["share", "square"])
    assert validation.get_smoothed_values() == {"share": 0.75, "square": 0.5625}


def test_rows_that_come_after_a_metric_was_read_count_and_the_next_validation_begins_empty():
    for _ in range(2):
        with metrics.aggregate(new_root=True) as validation:
            log_collected([(0, 1)], share_of_ones, ["share"])
            assert validation.get_smoothed_values() == {"share": 1.0}
            log_collected([(1, 0)], share_of_ones, ["share"])
        assert validation.get_smoothed_values() == {"share": 0.5}


def test_the_whole_set_is_computed_once_however_many_metrics_are_read():
    calls = []

    def compute(rows):
        calls.append(len(rows))
        return {"one": 1.0, "two": 2.0}

    with metrics.aggregate(new_root=True) as validation:
        log_collected([(0, 1), (1, 0)], compute, ["one", "two"])
    validation.get_smoothed_values()
    assert calls == [2]


def test_rows_may_be_an_iterator_although_several_meters_read_them():
    with metrics.aggregate(new_root=True) as validation, metrics.aggregate() as batch:
        log_collected(iter([(0, 1), (1, 0)]), share_of_ones, ["share"])
    assert batch.get_smoothed_values() == validation.get_smoothed_values() == {"share": 0.5}


def test_rows_stay_out_of_checkpoints():
    """fairseq can restore only its standard meters: with any other in a checkpoint, no run could resume."""
    with metrics.aggregate(new_root=True) as validation:
        log_collected([(0, 1), (1, 0)], share_of_ones, ["share"])
        metrics.log_scalar("loss", 2.0)
    state = validation.state_dict()
    assert [name for _, name, _, _ in state] == ["loss"]
    validation.load_state_dict(state)
    assert validation.get_smoothed_values() == {"loss": 2.0}
