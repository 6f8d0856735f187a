"""Windows over long sentences: every word is labeled once, where it has most context."""

from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.finetuning.tagging.dataset import Window, cut_windows


def test_a_sentence_that_fits_is_one_window() -> None:
    assert cut_windows([1, 2, 1], 4, 2) == [Window(0, 3, 0, 3)]


def test_a_worked_sentence() -> None:
    # Ten words of a piece each, six at a time, of which two at least again. The shared words are 4 and 5, then 8 and 9:
    # word 4 has four pieces before it and one behind it in the first window, none and five in the second.
    assert cut_windows([1] * 10, 6, 2) == [Window(0, 6, 0, 5), Window(4, 10, 5, 10)]
    # The window in the middle holds whole words only: word 3, of three pieces, is not shared.
    assert cut_windows([2, 2, 1, 3, 2], 5, 2) == [Window(0, 3, 0, 3), Window(2, 4, 3, 4), Window(3, 5, 4, 5)]


@given(st.data())
def test_every_word_is_labeled_once_where_it_has_most_context(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 12))
    pieces = data.draw(st.lists(st.integers(1, limit), min_size=1, max_size=30))
    windows = cut_windows(pieces, limit, data.draw(st.integers(0, limit - 1)))

    def context(window: Window, word: int) -> int:
        before, behind = sum(pieces[window.start : word]), sum(pieces[word + 1 : window.stop])
        return min(before, behind) if window.start <= word < window.stop else -1

    assert all(sum(pieces[window.start : window.stop]) <= limit for window in windows)
    assert [word for window in windows for word in range(window.first, window.last)] == list(range(len(pieces)))
    for window in windows:
        for word in range(window.first, window.last):
            assert context(window, word) == max(context(other, word) for other in windows)


@given(st.integers(2, 20), st.integers(1, 60), st.data())
def test_neighbors_share_what_was_asked_for(limit: int, words: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, limit - 1))
    windows = cut_windows([1] * words, limit, overlap)
    # Windows in which no word has most context are left out, so what is left may share less only where the ones
    # between them shared enough.
    if overlap <= limit // 2:
        assert all(one.stop - two.start >= overlap for one, two in zip(windows, windows[1:]))
