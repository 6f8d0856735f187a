"""Attention of two streams: visible tokens, which read one another, and masks, which read all tokens.

A layer computes the rows of both streams together; only attention tells them apart. The result equals self-attention
over the full sequences in which no visible token may attend to a mask.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.local import block_size, windowed
from fairseq_maelm.modules.attention.packed_qkv import split_packed
from fairseq_maelm.modules.attention.rotary import Rotation, turn
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
        rotations: rotary base -> rotation of all rows, as one sequence <float>[1, B * S + M].
        decoder_rows: <int64>[N] rows of the visible tokens that masks may read.
        decoder_slots: <int64>[N] slots of these tokens.
    """

    sequences: int
    length: int
    bias: AttentionBias | None
    masks_at: OutputPositions
    masks_bias: AttentionBias
    full_bias: AttentionBias
    rotations: dict[int, Rotation]
    decoder_rows: Tensor
    decoder_slots: Tensor

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

    def rotation_of_masks(self, rotary_base: int) -> Rotation:
        """Return the rotation of the masks' queries."""
        return Rotation(*(self.take(table[0]) for table in self.rotations[rotary_base]))

    def take(self, rows: Tensor) -> Tensor:
        """Select the masks' rows [M, ...] of [B * S + M, ...]."""
        return rows[self.sequences * self.length :]

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Split rows [B * S + M, ...]: visible tokens [B, S, ...], and masks [M, ...]."""
        # The backward pass of ``split`` joins gradients; that of slices would add zeros.
        visible, masks = rows.split([self.sequences * self.length, len(self.masks_at.indices)])
        return visible.unflatten(0, (self.sequences, self.length)), masks

    def split_packed(self, packed: Tensor, rotary_base: int | None) -> "Parts":
        """Split the joint (queries,) keys and values of all rows <float>[B * S + M, parts, H, d_h], and rotate them.

        Except in compiled graphs, ``packed`` is rotated in place, so nothing else may use it.
        """
        rotation = None if rotary_base is None else self.rotations[rotary_base]
        if not torch.compiler.is_compiling():
            count = packed.shape[1]
            pieces = _SplitStreams.apply(packed, self.sequences, self.length, *(rotation or (None, None)))
            return Parts(pieces[:count], pieces[count : 2 * count], pieces[2 * count :])
        if rotation is None:
            parts = packed.unbind(1)
        else:
            parts = tuple(heads.squeeze(0).transpose(0, 1) for heads in split_packed(packed[None], rotation))
        visible, masks = zip(*(self.split(part) for part in parts))
        visible = tuple(part.transpose(1, 2) for part in visible)
        return Parts(visible, masks, visible[-2:])

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
        rows = visible.transpose(1, 2).flatten(0, 1).index_select(0, self.decoder_rows)
        placed = placed.index_copy(0, self.decoder_slots, rows)
        return placed.unflatten(0, (self.sequences, -1)).transpose(1, 2)


class Parts(NamedTuple):
    """The (queries,) keys and values of a layer.

    Attributes:
        visible: of visible tokens, <float>[B, H, S, d_h].
        masks: of masks, <float>[M, H, d_h].
        read: keys and values of visible tokens that the masks read.
    """

    visible: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]
    read: tuple[Tensor, ...]


class _SplitStreams(torch.autograd.Function):
    """Splits into the tensors of ``Parts``; the backward pass writes each gradient once, to its place."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, sequences: int, length: int, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.sizes = packed.shape, (sequences, length)
        if cos is not None and sin is not None:
            turn(packed[None, :, :-1], cos, sin)
        visible, masks = _places(packed, *ctx.sizes)
        return (*visible, *masks, *visible[-2:].unbind())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        packed = next(each for each in gradients if each is not None).new_empty(ctx.shape)
        visible, masks = _places(packed, *ctx.sizes)
        count = len(visible)
        of_visible, of_masks, of_read = gradients[:count], gradients[count : 2 * count], gradients[2 * count :]
        for place, *summands in zip(visible, of_visible, (None,) * (count - 2) + of_read):
            _write(place, *summands)
        for place, gradient in zip(masks, of_masks):
            _write(place, gradient)
        cos, sin = ctx.saved_tensors
        if cos is not None:
            turn(packed[None, :, :-1], cos, sin.neg())
        return packed, None, None, None, None


def _write(place: Tensor, *gradients: Tensor | None) -> None:
    """Write the sum of up to two gradients."""
    given = [gradient for gradient in gradients if gradient is not None]
    if len(given) == 2:
        torch.add(*given, out=place)
    else:
        place.copy_(given[0]) if given else place.zero_()


def _places(packed: Tensor, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Return views of visible tokens <float>[parts, B, H, S, d_h] and of masks <float>[parts, M, H, d_h]."""
    parts = packed.transpose(0, 1)
    visible = parts[:, : sequences * length].unflatten(1, (sequences, length))
    return visible.transpose(2, 3), parts[:, sequences * length :]


def join(visible: Tensor, masks: Tensor) -> Tensor:
    """Join visible tokens <float>[B, S, ...] and masks <float>[M, ...] to rows <float>[B * S + M, ...]."""
    return torch.cat([visible.flatten(0, 1), masks])


def hidden_except(rows: Tensor, sequences: int, length: int) -> Tensor:
    """Return <bool>[B, S], True at keys that no query may read: all but ``rows`` <int64>[N] of the flattened [B, S].

    Args:
        rows: indices of the keys that may be read.
        sequences: B.
        length: S.
    """
    hidden = torch.ones(sequences * length, dtype=torch.bool, device=rows.device)
    return hidden.index_fill(0, rows, False).view(sequences, length)
