"""The order contains every sequence once, with similar lengths together, mixed differently in every epoch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.data.batches import length_buckets, order_by_length, padding_share

some_sizes = st.lists(st.integers(2, 600), min_size=1, max_size=200).map(np.array)


@settings(max_examples=100)
@given(some_sizes, st.integers(1, 50), st.floats(0.0, 0.5))
def test_buckets_keep_their_promises(sizes, enough, widest):
    buckets = length_buckets(sizes, enough, widest)
    assert len(buckets) == sizes.max() + 1
    assert (np.diff(buckets.astype(int)) >= 0).all(), "a longer sequence in an earlier bucket"
    lengths = np.unique(sizes)
    for bucket in np.unique(buckets[lengths]):
        inside = np.flatnonzero(buckets == bucket)
        assert inside.min() >= (1 - widest) * inside.max()
        held = np.isin(sizes, inside[1:]).sum()
        assert held < enough, "a bucket that held enough took in another length"


def test_equal_lengths_are_in_the_order_of_their_draws():
    sizes, draws = np.array([5, 9, 5, 9, 5, 9]), np.array([0.9, 0.3, 0.1, 0.8, 0.5, 0.2])
    assert order_by_length(sizes, draws).tolist() == [2, 4, 0, 5, 1, 3]


def test_companions_change_although_every_length_is_another():
    """Sorted by exact length, these sequences would always be in the same batches."""
    sizes = np.arange(4000, 4064)
    batches = [order_by_length(sizes, np.random.default_rng([1, epoch]).random(64)).reshape(8, 8) for epoch in (1, 2)]
    first, second = ({frozenset(batch) for batch in batches_.tolist()} for batches_ in batches)
    assert not first & second
    assert padding_share(list(batches[0]), sizes) < 0.02


def test_padding_share_by_hand():
    sizes = np.array([4, 2, 3, 3])
    assert padding_share([np.array([0, 1]), np.array([2, 3])], sizes) == 1 - 12 / 14
    assert padding_share([np.array([2, 3])], sizes) == 0.0
