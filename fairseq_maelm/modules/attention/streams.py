"""Attention of two streams: visible tokens, which read one another, and masks, which read all tokens.

A layer computes the rows of both streams together; only attention tells them apart. The result equals self-attention
over the full sequences in which no visible token may attend to a mask.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.batch import Layout
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.local import block_size, windowed
from fairseq_maelm.modules.attention.rotary import Rotation
from fairseq_maelm.modules.output_positions import OutputPositions


class TwoStreams(NamedTuple):
    """The arrangement of visible tokens and masks as rows <float>[B * S + M, D], and the biases of their attention.

    Attributes:
        sequences: B.
        length: S.
        bias: of visible tokens, whose queries and keys are <float>[B, S]; None if there is nothing to add or rotate.
        masks_at: the slots of the masks, and their arrangement <float>[B, Q].
        masks_bias: of masks, whose keys are the visible tokens and then the masks: <float>[B, S + Q].
        full_bias: of masks that read a window in blocks; queries and keys are the full sequences <float>[B, T].
        rows_bias: rotations of all rows, as one sequence <float>[1, B * S + M].
        rotations: rotary base -> rotation of the masks' queries.
        visible_rows: <int64>[N] rows of the visible tokens that masks may read.
        visible_slots: <int64>[N] slots of these tokens.
    """

    sequences: int
    length: int
    bias: AttentionBias | None
    masks_at: OutputPositions
    masks_bias: AttentionBias
    full_bias: AttentionBias
    rows_bias: AttentionBias
    rotations: dict[int, Rotation]
    visible_rows: Tensor
    visible_slots: Tensor

    def reads_whole(self, window: int) -> bool:
        """Return True if masks read whole sequences, with far tokens hidden, faster than blocks of them."""
        keys, full = self.masks_bias.positions, self.full_bias.positions
        assert keys is not None and full is not None
        # In blocks, which compiled graphs always use, every position asks for the keys of three blocks.
        pairs = self.masks_at.length * keys.shape[1]
        return not torch.compiler.is_compiling() and pairs <= 3 * block_size(window) * full.shape[1]

    def bias_of_masks(self, window: int | None) -> AttentionBias:
        """Return ``masks_bias``, with a window if there is one."""
        return self.masks_bias if window is None else windowed(self.masks_bias, window)

    def take(self, rows: Tensor) -> Tensor:
        """Select the masks' rows [M, ...] of [B * S + M, ...]."""
        return rows[self.sequences * self.length :]

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Split rows [B * S + M, ...]: visible tokens [B, S, ...], and masks [M, ...]."""
        # The backward pass of ``split`` joins gradients; that of slices would add zeros.
        visible, masks = rows.split([self.sequences * self.length, len(self.masks_at.slots)])
        return visible.unflatten(0, (self.sequences, self.length)), masks

    def split_heads(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Split heads of all rows <float>[1, H, B * S + M, d_h]: visible [B, H, S, d_h], and masks [M, H, d_h]."""
        visible, masks = heads[0].split([self.sequences * self.length, len(self.masks_at.slots)], dim=1)
        return visible.unflatten(1, (self.sequences, self.length)).transpose(0, 1), masks.transpose(0, 1)

    def read_by_masks(self, visible: Tensor, masks: Tensor) -> Tensor:
        """Return what masks read if not in blocks: visible heads <float>[B, H, S, d_h] and their own [M, H, d_h].

        The result is <float>[B, H, S + Q, d_h].
        """
        return torch.cat([visible, self.masks_at.pad(masks, self.sequences).transpose(1, 2)], dim=2)

    def at_their_slots(self, visible: Tensor, masks: Tensor) -> Tensor:
        """Put heads, shaped as in ``read_by_masks``, at their slots: <float>[B, H, T, d_h]."""
        full = self.full_bias.positions
        assert full is not None
        placed = self.masks_at.place(masks, self.sequences, full.shape[1]).flatten(0, 1)
        rows = visible.transpose(1, 2).flatten(0, 1).index_select(0, self.visible_rows)
        placed = placed.index_copy(0, self.visible_slots, rows)
        return placed.unflatten(0, (self.sequences, -1)).transpose(1, 2)


def join(visible: Tensor, masks: Tensor) -> Tensor:
    """Join visible tokens <float>[B, S, ...] and masks <float>[M, ...] to rows <float>[B * S + M, ...]."""
    return torch.cat([visible.flatten(0, 1), masks])


def hidden_keys(layout: Layout, tokens: Tensor) -> Tensor:
    """Return <bool>[B, S], True at encoder states that a decoder must not read: padding, and those left out of it.

    Args:
        layout: layout of the batch.
        tokens: <int64>[B, S] the encoder's input.
    """
    hidden = torch.ones(tokens.numel(), dtype=torch.bool, device=tokens.device)
    return hidden.index_fill(0, layout["visible_rows"], False).view(tokens.shape)


def hidden_masks(layout: Layout, sequences: int) -> Tensor:
    """Return <bool>[B, Q], True where there is no mask to read: padding, and predicted tokens that are visible."""
    rows = layout["output_rows"]
    hidden = torch.ones(sequences * layout["output_length"], dtype=torch.bool, device=rows.device)
    hidden = hidden.index_fill(0, rows, False)
    if len(layout["returned_outputs"]):
        hidden = hidden.index_fill(0, rows[layout["returned_outputs"]], True)
    return hidden.view(sequences, -1)
