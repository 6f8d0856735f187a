"""The choice of answers, compared with a loop over all pairs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.squad.spans import WINDOW_DTYPE, best_of_questions, best_spans, null_odds, window_rows


def logits_of(start: list[float], end: list[float]) -> torch.Tensor:
    return torch.tensor([start, end]).T[None]


def masks(length: int, allowed: list[int]) -> torch.Tensor:
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[0, allowed] = True
    return mask


def test_few_best_starts_still_give_an_answer():
    """The only start that is considered has no high end after it."""
    logits = logits_of([0.0, 0.0, 1.0, 5.0], [0.0, 0.0, 9.0, -9.0])
    context = masks(4, [2, 3])
    spans = best_spans(logits, context, context, 1, 30, kept=1)
    assert (spans.first.item(), spans.last.item(), spans.score.item()) == (3, 3, -4.0)


def test_a_window_without_starts_has_no_answer():
    logits = torch.zeros(1, 3, 2)
    spans = best_spans(logits, masks(3, [2]), masks(3, []), 20, 1, kept=5)
    assert spans.score.tolist() == [[-np.inf] * 5]
    assert ((spans.first >= 0) & (spans.first < 3) & (spans.last < 3)).all()


@given(st.integers(0, 10_000), st.integers(3, 12), st.integers(1, 6), st.integers(1, 8))
@settings(max_examples=100)
def test_best_spans_against_all_pairs(seed, length, longest, kept):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, length, 2, generator=generator)
    context = torch.rand(2, length, generator=generator) < 0.7
    starts = context & (torch.rand(2, length, generator=generator) < 0.7)
    spans = best_spans(logits, context, starts, length, longest, kept)
    for row in range(2):
        pairs = [
            (float(logits[row, first, 0] + logits[row, last, 1]), first, last)
            for first in range(length)
            for last in range(first, min(first + longest, length))
            if starts[row, first] and context[row, last]
        ]
        expected = sorted(pairs, reverse=True)[:kept]
        actual = [
            (score, first, last)
            for score, first, last in zip(*(getattr(spans, name)[row].tolist() for name in ("score", "first", "last")))
            if score > -np.inf
        ]
        assert [pair[1:] for pair in actual] == [pair[1:] for pair in expected]
        assert [pair[0] for pair in actual] == pytest.approx([pair[0] for pair in expected])


def rows_of(*rows: tuple[int, int, int, float, float]) -> np.ndarray:
    return np.array(list(rows), dtype=WINDOW_DTYPE)


def test_best_of_questions_by_hand():
    """Question 0 has four windows: the best answers are in the second and third, no answer scores lowest in the last.

    Of equal windows the first counts.
    """
    rows = [(0, 1, 1, -np.inf, 6.0), (1, 5, 7, 3.0, 4.0), (2, 8, 8, 3.0, 4.0), (3, 9, 9, -1.0, 1.5)]
    spans = best_of_questions(rows_of(*rows, (4, 0, 2, 0.5, -1.0)), np.array([0, 4, 5]))
    assert spans["first"].tolist() == [5, 0] and spans["last"].tolist() == [7, 2]
    assert spans["null"].tolist() == [1.5, -1.0]
    assert null_odds(spans).tolist() == [-1.5, -1.5]


def test_missing_windows_are_said():
    with pytest.raises(ValueError, match="1 windows were scored, but there are 2"):
        best_of_questions(rows_of((0, 0, 0, 0.0, 0.0)), np.array([0, 2]))


def test_rows_are_small_and_in_pieces():
    logits = logits_of([1.0, 0.0, 0.0, 2.0], [1.0, 0.0, 0.0, 2.0])
    context = masks(4, [2, 3])
    batch = {"context_mask": context, "start_mask": context, "id": torch.tensor([41]), "shift": torch.tensor([98])}
    rows = window_rows(logits, batch, SimpleNamespace(n_best=20, max_answer_length=30), kept=2)
    assert rows.tolist() == [[(41, 101, 101, 4.0, 2.0), (41, 100, 101, 2.0, 2.0)]]
    assert rows[:, 0].nbytes == 20
