"""What changes over the updates of a run: the masking rate, in equal steps, and the length of sequences.

Data workers draw masks ahead of the update and know neither its number nor the order of the batches. Therefore the
update number of each sequence is stored when the epoch's batches are ordered, before the workers start: by
``fairseq_fixes.private.ScheduledBatches``.
"""

from typing import NamedTuple

import numpy as np

# Number of rates in a run. Each makes batches of another shape, for which a CPU or a compiler prepares itself anew.
_RATES = 8


class Schedule(NamedTuple):
    """The masking rates in a run, and until when its sequences are short."""

    mask_prob: float  # rate in the first eighth of the run
    mask_prob_end: float  # rate in the last eighth
    half_length_until: float = 0.0  # share of the updates whose blocks are cut in half, in [0, 1)

    def mask_prob_at(self, made: int, updates: int) -> float:
        """Return the masking rate after ``made`` of a run's ``updates`` updates."""
        step = min(made * _RATES // updates, _RATES - 1)
        return self.mask_prob + (self.mask_prob_end - self.mask_prob) * step / (_RATES - 1)

    def is_short_at(self, made: int, updates: int) -> bool:
        """Return whether blocks are cut in half after ``made`` of a run's ``updates`` updates."""
        return made < self.half_length_until * updates


class ScheduledEpoch(NamedTuple):
    """The schedule of an epoch's batches."""

    schedule: Schedule
    updates: int  # number of updates of the whole run
    made: np.ndarray  # <int32>[items] number of completed updates when each item is used

    def mask_prob(self, indices: np.ndarray) -> float:
        """Return the masking rate of a batch with item indices <int64>[B]."""
        return self.schedule.mask_prob_at(int(self.made[indices[0]]), self.updates)

    def halves_blocks(self, indices: np.ndarray) -> bool:
        """Return whether the blocks of a batch with item indices <int64>[B] are cut in half."""
        return self.schedule.is_short_at(int(self.made[indices[0]]), self.updates)
