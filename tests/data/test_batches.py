"""The base class of datasets, with fixed orders, since a resumed run must see the same batches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.data.batches import BatchDataset, order_by_length

SIZES = np.array([5, 3, 9, 3, 7, 5, 5, 2])


class Dataset(BatchDataset):
    largest_item, remedy = "an item", "a smaller --max-length"

    def collate(self, indices):
        return {"ntokens": int(self.sizes[indices].sum())}


@pytest.mark.parametrize(
    ("order", "epoch", "expected"),
    [
        ("shortest", 5, [7, 1, 3, 0, 5, 6, 4, 2]),
        ("buckets", 2, order_by_length(SIZES, np.random.default_rng([4, 2]).random(8)).tolist()),
    ],
)
def test_orders(order, epoch, expected):
    dataset = Dataset(SIZES, order, seed=4)
    dataset.set_epoch(epoch)
    assert dataset.ordered_indices().tolist() == expected


def test_some_items_of_one_epoch():
    dataset = Dataset(SIZES, "buckets", seed=4, fixed_epoch=0, used=np.array([0, 2, 5]))
    dataset.set_epoch(3)
    draws = np.random.default_rng([4, 0]).random(3)
    assert dataset.ordered_indices().tolist() == np.array([0, 2, 5])[order_by_length(SIZES[[0, 2, 5]], draws)].tolist()


def test_batches_are_made_of_indices():
    dataset = Dataset(SIZES, "shortest", token_counts=2 * SIZES)
    assert len(dataset) == 8 and dataset[3] == 3 and dataset.__getitems__([1, 2]) == [1, 2]
    assert (dataset.size(2), dataset.num_tokens(2), dataset.num_tokens_vec(np.array([2])).tolist()) == (9, 18, [18])
    assert dataset.collater([]) == {}
    batch = dataset.collater([0, 2])
    assert torch.equal(batch.pop("id"), torch.tensor([0, 2])) and batch == {"nsentences": 2, "ntokens": 14}
    assert not dataset.can_reuse_epoch_itr_across_epochs
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=36)
    assert np.concatenate(batches).tolist() == dataset.ordered_indices().tolist()
    assert max(len(each) * 2 * SIZES[each].max() for each in batches) <= 36


@given(
    st.lists(st.integers(1, 40), max_size=100),
    st.one_of(st.none(), st.integers(40, 400)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([1, 2, 3, 8, 64]),
)
def test_batches_hold_every_index_once_in_order(sizes, max_tokens, max_sentences, multiple):
    """Also those that fairseq's own function drops."""
    sizes = np.array(sizes, dtype=np.int64)
    indices = np.random.default_rng(len(sizes)).permutation(len(sizes))
    batches = Dataset(sizes, "shortest").batch_by_size(indices, max_tokens, max_sentences, multiple)
    assert [int(index) for batch in batches for index in batch] == indices.tolist()
    for batch in batches:
        assert 0 < len(batch) <= (max_sentences or len(sizes))
        assert max(sizes[index] for index in batch) * len(batch) <= (max_tokens or np.inf)


def test_an_item_that_fits_into_no_batch_is_told_with_what_to_do():
    dataset = Dataset(SIZES, "shortest", token_counts=2 * SIZES)
    with pytest.raises(
        ValueError, match="--max-tokens 17 is less than the 18 tokens of an item, .* 18, or a smaller --max-l"
    ):
        dataset.batch_by_size(dataset.ordered_indices(), max_tokens=17)
