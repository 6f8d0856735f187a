"""Windows over sequences of units, such as words or pieces, that are longer than a model's maximum length."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Weight of the window's length in a unit's amount of context, as in BERT's code for SQuAD.
_OF_LENGTH = 0.01


def cut_windows(ends: Sequence[int], limit: int, overlap: int) -> list[tuple[int, int]]:
    """Return windows [start, stop) of whole units; all windows but the last are as long as possible.

    ``ends`` [units + 1] has the number of pieces before each unit, then the total. A window has at most ``limit``
    pieces, as does a unit, and shares at least ``overlap`` with its neighbor, where whole units allow it.
    """
    windows, start = list[tuple[int, int]](), 0
    while True:
        stop = bisect_right(ends, ends[start] + limit) - 1
        windows.append((start, stop))
        if stop >= len(ends) - 1:
            return windows
        start = max(bisect_right(ends, ends[stop] - overlap) - 1, start + 1)
        # Each window must end after the previous one; otherwise the loop would not end.
        while bisect_right(ends, ends[start] + limit) - 1 <= stop:
            start += 1


def most_context(windows: Sequence[tuple[int, int]], ends: Sequence[int]) -> NDArray[np.int32]:
    """Return, for each unit, the index of the window that gives it the most context, <int32>[units].

    Context = min(pieces before the unit, pieces after it) + 0.01 * pieces in the window (Devlin et al., 2019). Ties go
    to the first window.
    """
    if len(windows) == 1:
        return np.zeros(len(ends) - 1, dtype=np.int32)
    boundaries = np.asarray(ends, dtype=np.int64)
    owners, most = np.zeros(len(boundaries) - 1, dtype=np.int32), np.full(len(boundaries) - 1, -1.0)
    for number, (start, stop) in enumerate(windows):
        inside = boundaries[start : stop + 1]
        context = np.minimum(inside[:-1] - inside[0], inside[-1] - inside[1:])
        context = context + _OF_LENGTH * (inside[-1] - inside[0])
        better = context > most[start:stop]
        owners[start:stop][better] = number
        most[start:stop][better] = context[better]
    return owners
