"""Examples are cut as by the library tokenizers, and keep their end symbols."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.text.truncation import shortened_lengths, special_tokens, truncate

tokenizers = pytest.importorskip("tokenizers")
WORDS = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
WORDS.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 60))
def test_pairs_are_cut_as_by_the_library_that_reads_exported_folders(first, second, room):
    WORDS.enable_truncation(room, strategy="longest_first")
    ids = WORDS.encode("a " * first, "b " * second).ids
    assert shortened_lengths([first, second], room) == [ids.count(0), ids.count(1)]


def test_end_symbols_stay():
    a, b = np.array([5, 6, 7, 8, 2], dtype=np.uint16), np.array([9, 10, 2], dtype=np.uint16)
    (short_a, short_b), cut = truncate([a, b], max_positions=8)
    assert cut and short_a.tolist() == [5, 6, 2] and short_b.tolist() == [9, 10, 2]
    assert short_a.dtype == np.uint16
    assert 1 + len(short_a) + 1 + len(short_b) == 8
    assert truncate([a, b], max_positions=10) == ([a, b], False)
    (alone,), cut = truncate([a], max_positions=5)
    assert cut and alone.tolist() == [5, 6, 7, 2]
    assert (special_tokens(1), special_tokens(2)) == (2, 4)
