"""Batches of near-equal length, and results in the order of the items."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.models.batched_inference import batches_by_length, predict


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 300), st.sampled_from([None, 1, 3]))
def test_batches_hold_every_text_once_and_no_more_than_allowed(lengths, batch_tokens, batch_size):
    batches = batches_by_length(lengths, batch_tokens, batch_size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for places in batches:
        assert len(places) == 1 or len(places) * lengths[places[0]] <= batch_tokens
        assert batch_size is None or len(places) <= batch_size
        assert max(lengths[place] for place in places) == lengths[places[0]]


def test_a_number_of_sequences_alone_may_limit_batches():
    assert [places.tolist() for places in batches_by_length([1, 9, 1, 5, 1], batch_size=2)] == [[1, 3], [0, 2], [4]]
    assert batches_by_length([], batch_size=2) == []


@pytest.mark.parametrize("training", [True, False])
def test_results_come_back_in_order_from_a_model_in_evaluation(training):
    model = torch.nn.Linear(1, 1).train(training)
    seen = []

    def run(batch):
        assert not model.training and not torch.is_grad_enabled()
        seen.append(batch["values"].tolist())
        return [(value, model(batch["values"]).shape) for value in batch["values"][:, 0].tolist()]

    values = [1.0, 2.0, 3.0]
    results = predict(
        model,
        [2, 9, 4],
        lambda places: {"values": torch.tensor([[values[place]] for place in places]), "name": "kept"},
        run,
        batch_size=2,
    )
    assert [value for value, _ in results] == values and model.training == training
    assert seen == [[[2.0], [3.0]], [[1.0]]]


def test_every_item_of_a_batch_needs_a_result():
    with pytest.raises(ValueError, match="zip"):
        predict(torch.nn.Linear(1, 1), [1, 1], torch.as_tensor, lambda batch: batch[:1], batch_size=2)
