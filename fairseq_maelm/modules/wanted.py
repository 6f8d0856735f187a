"""The positions at which a layer's output is wanted, where that is not everywhere.

The last layer before the prediction head reads every position, but its output is read at masked ones alone: queries,
what follows attention and the feed-forward network are not needed elsewhere.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.batch import Layout


class WantedPositions(NamedTuple):
    """Wanted positions, as rows <float>[M, ...] of all sequences together or, for attention, as [B, Q, ...].

    Attributes:
        slots: <int64>[M] of the wanted positions in the flattened batch, ascending.
        rows: <int64>[M] place of each in the flattened [B, Q].
        length: Q, the largest number of wanted positions of one sequence.
    """

    slots: Tensor
    rows: Tensor
    length: int

    def take(self, states: Tensor) -> Tensor:
        """Rows [M, ...] of a batch [B, S, ...]."""
        return states.flatten(0, 1).index_select(0, self.slots)

    def pad(self, rows: Tensor, batch: int) -> Tensor:
        """Rows [M, ...] by sequence, [B, Q, ...], with zeros behind the shorter ones."""
        shape = (batch, self.length, *rows.shape[1:])
        # In a compiled graph the question would make one for either answer.
        if not torch.compiler.is_compiling() and len(rows) == batch * self.length:
            return rows.view(shape)
        return rows.new_zeros(batch * self.length, *rows.shape[1:]).index_copy(0, self.rows, rows).view(shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of ``pad``: [B, Q, ...] to [M, ...]."""
        rows = padded.flatten(0, 1)
        whole = not torch.compiler.is_compiling() and len(rows) == len(self.rows)
        return rows if whole else rows.index_select(0, self.rows)


def first_positions(tokens: Tensor) -> WantedPositions:
    """The first position of each sequence of <int64>[B, S]."""
    rows = torch.arange(len(tokens), device=tokens.device)
    return WantedPositions(rows * tokens.shape[1], rows, 1)


def masked_positions(layout: Layout) -> WantedPositions:
    """The positions to predict."""
    return WantedPositions(layout["masked_slots"], layout["wanted_rows"], layout["wanted_length"])
