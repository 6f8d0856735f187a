"""The positions at which a layer's output is needed, where not all are needed.

The last layer before the LM head reads every position, but its output is needed only at masked positions. Elsewhere, it
computes no queries, attention outputs or feed-forward network.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.batch import Layout


class OutputPositions(NamedTuple):
    """M output positions. Their states have the shape [M, ...] or, for attention, [B, Q, ...]."""

    indices: Tensor  # <int64>[M] in the flattened states [B, S] or [B, T], ascending
    padded: Tensor  # <int64>[M] in the flattened [B, Q]
    length: int  # Q, the maximum number of output positions in a sequence
    wanted: int  # number of output positions that are not spare; those come first

    def take(self, states: Tensor) -> Tensor:
        """Select the rows [M, ...] of a batch [B, S, ...]."""
        return states.flatten(0, 1).index_select(0, self.indices)

    def pad(self, rows: Tensor, batch: int) -> Tensor:
        """Arrange rows [M, ...] by sequence: [B, Q, ...], padded with zeros."""
        shape = (batch, self.length, *rows.shape[1:])
        # In a compiled graph this condition would make two graphs.
        if not torch.compiler.is_compiling() and self.wanted == batch * self.length:
            return rows.view(shape)
        return rows.new_zeros(batch * self.length, *rows.shape[1:]).index_copy(0, self.padded, rows).view(shape)

    def place(self, rows: Tensor, batch: int, length: int) -> Tensor:
        """Put rows [M, ...] at their positions in a batch [B, S, ...], with zeros elsewhere."""
        padded = rows.new_zeros(batch * length, *rows.shape[1:])
        return padded.index_copy(0, self.indices, rows).unflatten(0, (batch, length))

    def unpad(self, padded: Tensor) -> Tensor:
        """Invert ``pad``: [B, Q, ...] to [M, ...]."""
        rows = padded.flatten(0, 1)
        whole = not torch.compiler.is_compiling() and self.wanted == len(rows)
        return rows if whole else rows.index_select(0, self.padded)


def first_positions(tokens: Tensor) -> OutputPositions:
    """Return each sequence's first position, given tokens <int64>[B, S]."""
    rows = torch.arange(len(tokens), device=tokens.device)
    return OutputPositions(rows * tokens.shape[1], rows, 1, len(rows))


def predicted_positions(layout: Layout) -> OutputPositions:
    """Return the positions whose tokens are predicted."""
    wanted = layout["predicted_tokens"]
    return OutputPositions(layout["predicted_slots"], layout["padded_outputs"], layout["output_length"], wanted)


def unseen_outputs(layout: Layout) -> Tensor:
    """Return indices <int64>[M - K] into ``predicted_slots`` of all but the tokens that the encoder sees, ascending."""
    seen = torch.zeros(len(layout["predicted_slots"]), dtype=torch.uint8, device=layout["predicted_slots"].device)
    seen = seen.index_fill(0, layout["seen_outputs"], 1)
    # Unlike nonzero, sorting does not wait for a GPU: the number of indices is known.
    return seen.argsort(stable=True)[: len(seen) - len(layout["seen_outputs"])]


def unseen_positions(layout: Layout) -> OutputPositions:
    """Return the positions whose tokens are predicted and not seen by the encoder."""
    every = predicted_positions(layout)
    if not len(layout["seen_outputs"]):
        return every
    unseen = unseen_outputs(layout)
    wanted = every.wanted - len(layout["seen_outputs"])
    return OutputPositions(every.indices[unseen], every.padded[unseen], every.length, wanted)
