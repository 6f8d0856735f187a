"""Examples are cut as in BERT's code, and keep their end symbols."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.text.truncation import shortened_lengths, special_tokens, truncate


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 60))
def test_the_longer_one_loses_one_token_after_the_other(first, second, room):
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert shortened_lengths([first, second], room) == kept


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
