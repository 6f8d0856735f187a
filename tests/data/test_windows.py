"""Windows of whole units: worked cases, and their definition for random units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.data.windows import cut_windows, most_context


@pytest.mark.parametrize(
    ("pieces", "limit", "overlap", "windows", "owners"),
    [
        ([1, 2, 1], 4, 2, [(0, 3)], [0, 0, 0]),
        # The shared units are 4 and 5: unit 4 has four pieces before it and one after it in the first window, none and
        # five in the second.
        ([1] * 10, 6, 2, [(0, 6), (4, 10)], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        # Unit 3, of three pieces, is not shared; of equal contexts the longer window counts.
        ([2, 2, 1, 3, 2], 5, 2, [(0, 3), (2, 4), (3, 5)], [0, 0, 0, 2, 2]),
        ([1] * 15, 10, 6, [(0, 10), (4, 14), (8, 15)], [0] * 7 + [1] * 4 + [2] * 4),
        ([1] * 25, 10, 0, [(0, 10), (10, 20), (20, 25)], [0] * 10 + [1] * 10 + [2] * 5),
        # Units without pieces belong to the window before them.
        ([3, 0, 2, 0], 3, 0, [(0, 2), (2, 4)], [0, 0, 1, 1]),
    ],
)
def test_worked_cases(
    pieces: list[int], limit: int, overlap: int, windows: list[tuple[int, int]], owners: list[int]
) -> None:
    ends = [0, *np.cumsum(pieces).tolist()]
    assert cut_windows(ends, limit, overlap) == windows
    assert most_context(windows, ends).tolist() == owners


@given(st.data())
def test_windows_fit_and_every_unit_has_most_context_in_its_own(data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 12))
    pieces = data.draw(st.lists(st.integers(1, limit), min_size=1, max_size=30))
    overlap, ends = data.draw(st.integers(0, limit - 1)), [0, *np.cumsum(pieces).tolist()]
    windows = cut_windows(ends, limit, overlap)
    assert windows[0][0] == 0 and windows[-1][1] == len(pieces)
    assert all(sum(pieces[start:stop]) <= limit for start, stop in windows)
    assert all(one[0] < two[0] <= one[1] < two[1] for one, two in zip(windows, windows[1:])), "none is left out"
    if overlap <= limit // 2 and set(pieces) == {1}:
        assert all(one[1] - two[0] >= overlap for one, two in zip(windows, windows[1:]))

    def context(window: tuple[int, int], unit: int) -> float:
        start, stop = window
        if not start <= unit < stop:
            return -1.0
        return min(ends[unit] - ends[start], ends[stop] - ends[unit + 1]) + 0.01 * (ends[stop] - ends[start])

    owners = most_context(windows, ends).tolist()
    assert owners == sorted(owners), "the units of a window are neighbors"
    for unit, owner in enumerate(owners):
        assert owner == int(np.argmax([context(window, unit) for window in windows]))
