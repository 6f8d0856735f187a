"""Batches contain every example, even those that fairseq's own function drops; a rank may have no batch."""

from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import IdDataset, ListDataset, NestedDictionaryDataset, NumSamplesDataset, SortDataset, data_utils
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from hypothesis import given
from hypothesis import strategies as st

import fairseq_maelm


@given(
    st.lists(st.integers(1, 40), max_size=100),
    st.one_of(st.none(), st.integers(40, 400)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([1, 2, 3, 8, 64]),
)
def test_batches_hold_every_index_once_in_order(
    sizes: list[int], max_tokens: int | None, max_sentences: int | None, multiple: int
) -> None:
    indices = np.random.default_rng(len(sizes)).permutation(len(sizes))
    for given_as in (indices, indices.tolist(), iter(indices)):
        batches = data_utils.batch_by_size(
            given_as, sizes.__getitem__, np.array(sizes)[indices], max_tokens, max_sentences, multiple
        )
        assert [int(index) for batch in batches for index in batch] == indices.tolist()
        for batch in batches:
            assert 0 < len(batch) <= (max_sentences or len(sizes))
            assert max(sizes[index] for index in batch) * len(batch) <= (max_tokens or np.inf)


@pytest.mark.parametrize("number", [1, 7, 8, 71])
def test_no_example_of_fairseqs_own_datasets_is_left_out(number: int) -> None:
    """The datasets are nested as in fairseq's task sentence_prediction."""
    sizes = np.full(number, 5)
    inner = ListDataset([np.zeros(5)] * number, sizes)
    nested = NestedDictionaryDataset({"id": IdDataset(), "tokens": inner, "n": NumSamplesDataset()}, sizes=[sizes])
    dataset = SortDataset(nested, sort_order=[np.random.permutation(number)])
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=32, required_batch_size_multiple=8)
    assert sorted(np.concatenate(batches).tolist()) == list(range(number))


class Counting:
    """A criterion that counts examples, and fails for outputs without metrics."""

    def __call__(self, model: Any, sample: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, len(sample["id"]), {"nsentences": len(sample["id"]), "ntokens": 1}

    @staticmethod
    def reduce_metrics(outputs: list[dict[str, Any]]) -> None:
        metrics.log_scalar("examples", sum(output["nsentences"] for output in outputs))


def test_a_rank_without_a_batch_adds_nothing() -> None:
    fairseq_maelm.register()
    task = FairseqTask(None)
    outputs = [task.valid_step(sample, torch.nn.Identity(), Counting())[2] for sample in ({"id": [1, 2]}, {})]
    assert outputs[1] == {}
    with metrics.aggregate(new_root=True) as meters:
        task.reduce_metrics(outputs, Counting())
    assert meters.get_smoothed_values()["examples"] == 2
