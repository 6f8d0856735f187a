"""Windows: what of a context is read together with a question, where sequences have a limited length.

A sequence is ``<s> question </s> </s> window </s>``. Windows of a context begin a stride apart; the last is the first
that reaches the context's end.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# <s> and </s> around the question, and </s> before and after the window.
SPECIAL_TOKENS = 4


class Windows(NamedTuple):
    """W windows of Q questions, those of a question together and in order.

    Attributes:
        question: <int64>[W] number of the question.
        begin: <int64>[W] the first piece of the context in the window.
        end: <int64>[W] the piece after the last.
        first: <int64>[Q + 1] the first window of each question.
    """

    question: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    first: NDArray[np.int64]


def cut_windows(
    question_lengths: NDArray[np.int64], context_lengths: NDArray[np.int64], max_length: int, stride: int
) -> Windows:
    """Cut each question's context into windows.

    Args:
        question_lengths: <int64>[Q] tokens of each question, already cut to what may be used of it.
        context_lengths: <int64>[Q] pieces of each question's context, at least 1.
        max_length: of a sequence, special tokens included; more than a question and its special tokens have.
        stride: pieces from the beginning of one window to that of the next; a smaller window is its own stride, so that
            no piece is left out.
    """
    room = max_length - SPECIAL_TOKENS - question_lengths
    step = np.minimum(stride, room)
    count = 1 + np.maximum(0, -(-(context_lengths - room) // step))
    first = np.concatenate([[0], np.cumsum(count)])
    question = np.repeat(np.arange(len(count)), count)
    begin = (np.arange(first[-1]) - first[question]) * step[question]
    end = np.minimum(begin + room[question], context_lengths[question])
    return Windows(question, begin, end, first)


def best_context(begin: NDArray[np.int64], end: NDArray[np.int64], number: int) -> NDArray[np.bool_]:
    """Mark the pieces of a window that no other window of the question shows with more context around them.

    A piece's context in a window is the smaller of the numbers of pieces to its left and to its right, plus a hundredth
    of the window's length, as in BERT's fine-tuning; of equal windows the first has it. Every piece of a context is
    marked in exactly one window.

    Args:
        begin: <int64>[K] of all windows of the question, ascending.
        end: <int64>[K] likewise.
        number: of the window, in 0 ... K - 1.

    Returns:
        <bool>[pieces of the window].
    """
    near = np.arange(np.searchsorted(end, begin[number], side="right"), np.searchsorted(begin, end[number]))
    pieces = np.arange(begin[number], end[number])
    left = pieces - begin[near, None]
    right = end[near, None] - 1 - pieces
    context = np.minimum(left, right)
    scores = np.where(context < 0, -1.0, context + 0.01 * (end - begin)[near, None])
    return near[scores.argmax(axis=0)] == number


def windows_with(windows: Windows, answers: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Mark the windows <bool>[W] that hold the whole answer of their question; ``answers`` <int32>[Q, 2] pieces."""
    own = answers[windows.question]
    return (own[:, 0] >= 0) & (own[:, 0] >= windows.begin) & (own[:, 1] < windows.end)
