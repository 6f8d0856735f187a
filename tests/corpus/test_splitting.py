"""The split: exact, stateless, uniform, and independent of how the documents are grouped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.corpus import encoding
from fairseq_maelm.corpus.encoding import draw_split, random_keys


@given(st.integers(1, 300), st.data(), st.integers(0, 10**9), st.integers(1, 8))
def test_exactly_the_wanted_number_is_held_out(documents: int, data: st.DataObject, seed: int, shards: int) -> None:
    wanted = data.draw(st.integers(0, documents))
    targets = draw_split(documents, wanted, shards, seed).targets(0, documents)
    assert (targets == shards).sum() == wanted
    assert set(targets.tolist()) <= set(range(shards + 1))


def test_the_threshold_is_found_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = draw_split(10_000, 137, 3, seed=5)
    monkeypatch.setattr(encoding, "_BLOCK", 64)
    assert draw_split(10_000, 137, 3, seed=5) == at_once


def test_keys_are_distinct_uniform_and_depend_on_seed_and_purpose() -> None:
    keys = random_keys(0, 100_000, seed=1, purpose="valid")
    assert keys.dtype == np.uint64
    assert len(np.unique(keys)) == 100_000
    shares = np.bincount((keys >> np.uint64(61)).astype(int), minlength=8) / 100_000
    assert np.abs(shares - 1 / 8).max() < 0.005
    for other in (random_keys(0, 100_000, 2, "valid"), random_keys(0, 100_000, 1, "shard")):
        assert abs(np.corrcoef(keys.astype(float), other.astype(float))[0, 1]) < 0.01


def test_shards_are_even_and_independent_of_the_validation_split() -> None:
    targets = draw_split(100_000, 20_000, 4, seed=3).targets(0, 100_000)
    assert np.abs(np.bincount(targets, minlength=5) / 20_000 - 1).max() < 0.03
    # The keys of the split itself would do too, but other shards would come out of the same command.
    drawn = draw_split(100_000, 0, 4, seed=3).targets(0, 100_000)
    assert (drawn == random_keys(0, 100_000, 3, "shard") % np.uint64(4)).all()
