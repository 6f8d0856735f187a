"""Windows of contexts, worked out by hand and against the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.squad.dataset import best_context, cut_windows, windows_with


def windows_of(question: int, context: int, max_length: int, stride: int) -> list[tuple[int, int]]:
    windows = cut_windows(np.array([question]), np.array([context]), max_length, stride)
    return list(zip(windows.begin.tolist(), windows.end.tolist()))


def test_windows_by_hand():
    """A sequence of 20 with a question of 6 has room for 10 pieces."""
    assert windows_of(6, 10, 20, 4) == [(0, 10)]
    assert windows_of(6, 11, 20, 4) == [(0, 10), (4, 11)]
    assert windows_of(6, 14, 20, 4) == [(0, 10), (4, 14)]
    assert windows_of(6, 15, 20, 4) == [(0, 10), (4, 14), (8, 15)]
    assert windows_of(6, 1, 20, 4) == [(0, 1)]


def test_a_stride_longer_than_a_window_skips_nothing():
    assert windows_of(6, 25, 20, 99) == [(0, 10), (10, 20), (20, 25)]


def test_windows_of_several_questions():
    windows = cut_windows(np.array([6, 2, 6]), np.array([11, 11, 3]), 20, 4)
    assert windows.question.tolist() == [0, 0, 1, 2]
    assert windows.first.tolist() == [0, 2, 3, 4]
    assert list(zip(windows.begin.tolist(), windows.end.tolist())) == [(0, 10), (4, 11), (0, 11), (0, 3)]


def test_best_context_by_hand():
    """Windows (0, 4) and (2, 6): piece 2 has 1 to its right in the first and 0 to its left in the second; piece 3 the
    other way round."""
    begin, end = np.array([0, 2]), np.array([4, 6])
    assert best_context(begin, end, 0).tolist() == [True, True, True, False]
    assert best_context(begin, end, 1).tolist() == [False, True, True, True]


def test_of_equal_contexts_the_first_window_has_the_piece_and_a_longer_window_breaks_ties():
    # Piece 2 has one piece on its smaller side in both windows.
    assert best_context(np.array([0, 1]), np.array([4, 5]), 0).tolist() == [True, True, True, False]
    assert best_context(np.array([0, 1]), np.array([4, 6]), 0).tolist() == [True, True, False, False]


def test_windows_that_hold_the_whole_answer():
    windows = cut_windows(np.array([6, 6, 6]), np.array([15, 15, 15]), 20, 4)
    answers = np.array([[8, 9], [9, 14], [-1, -1]], dtype=np.int32)
    assert windows_with(windows, answers).tolist() == [True, True, True, False, False, True, False, False, False]


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 60), st.integers(15, 30), st.integers(1, 40))


@given(SHAPES)
@settings(max_examples=200, deadline=None)
def test_windows_cover_the_context_and_fit(shape):
    question, context, max_length, stride = shape
    windows = windows_of(question, context, max_length, stride)
    assert windows[0][0] == 0 and windows[-1][1] == context
    assert all(0 < end - begin <= max_length - question - 4 for begin, end in windows)
    assert all(
        second[0] - first[0] == min(stride, max_length - question - 4) for first, second in zip(windows, windows[1:])
    )
    assert all(second[0] <= first[1] for first, second in zip(windows, windows[1:])), "no piece between two windows"
    assert all(end < context for _, end in windows[:-1]), "no window after the one that reaches the end"


@given(SHAPES)
@settings(max_examples=200, deadline=None)
def test_every_piece_is_best_in_exactly_one_window_and_by_the_definition(shape):
    question, context, max_length, stride = shape
    begin, end = (np.array(each) for each in zip(*windows_of(question, context, max_length, stride)))
    owners = np.full(context, -1)
    for number in range(len(begin)):
        best = np.arange(begin[number], end[number])[best_context(begin, end, number)]
        assert (owners[best] == -1).all()
        owners[best] = number
    for piece in range(context):
        scores = [
            min(piece - first, last - 1 - piece) + 0.01 * (last - first) if first <= piece < last else -1.0
            for first, last in zip(begin, end)
        ]
        assert owners[piece] == int(np.argmax(scores))
