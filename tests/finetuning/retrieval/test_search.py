"""Exact search equals sorting everything, in blocks of any size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.retrieval.search import best, blocks_of, merge, search


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12), st.integers(1, 45), st.sampled_from([1, 3]))
def test_search_is_a_full_sort(seed, documents, block, k, largest):
    # Small whole numbers: products are exact, and many scores are equal.
    generator = np.random.default_rng(seed)
    texts = generator.integers(-largest, largest + 1, (documents, 3)).astype(np.float32)
    queries = generator.integers(-largest, largest + 1, (4, 3)).astype(np.float32)
    scores = queries @ texts.T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values, rows = search(torch.from_numpy(queries), blocks_of(texts, block), k)
    assert rows.tolist() == expected.tolist()
    assert values.tolist() == np.take_along_axis(scores, expected, axis=1).tolist()


def test_equal_scores_are_taken_by_row():
    values, columns = best(torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]]), 3)
    assert values.tolist() == [[2.0, 2.0, 1.0]] and columns.tolist() == [[1, 3, 0]]


def test_merging_counts_a_document_once():
    values, rows = merge(torch.tensor([[5.0, 3.0, 5.0, 4.0]]), torch.tensor([[9, 2, 9, 1]]), 3)
    assert values.tolist() == [[5.0, 4.0, 3.0]] and rows.tolist() == [[9, 1, 2]]


def test_half_precision_embeddings_are_compared_in_single_precision():
    texts = np.array([[1.0], [1.001]], dtype=np.float16)
    values, rows = search(torch.tensor([[1000.0]]), blocks_of(texts, 1), 1)
    assert rows.tolist() == [[1]] and values.dtype == torch.float32


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        search(torch.ones(1, 1), [(0, torch.tensor([[float("nan")]]))], 1)
