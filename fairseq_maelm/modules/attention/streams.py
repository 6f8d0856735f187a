"""Queries, keys and values from the joint result of one matrix product: of plain sequences, and of two streams.

The two streams are visible tokens, which read one another, and masks, which read all tokens. A layer computes the rows
of both together; only attention tells them apart. The result equals self-attention over the full sequences in which no
visible token may attend to a mask. What the two streams are, and which positions a mask reads, is in ``MaskStream`` and
``SharedDecoder``.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.context import Attend, AttentionContext, MaskStream
from fairseq_maelm.modules.attention.local import block_size, windowed
from fairseq_maelm.modules.attention.rotary import Rotation, rotate, turn


def attend_parts(attend: Attend, qkv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query, key, value = split_packed(qkv)
    return attend(query, key, value, context, dropout).transpose(1, 2)


def split_packed(packed: Tensor, rotation: Rotation | None = None, values: int = 1) -> tuple[Tensor, ...]:
    """Split <float>[B, S, parts, H, d_h] into <float>[B, H, S, d_h]; rotate all parts except the last ``values``.

    Except in compiled graphs, ``packed`` is rotated in place, so nothing else may use it.
    """
    compiling = torch.compiler.is_compiling()
    if rotation is None and (compiling or packed.device.type != "cpu"):
        return packed.permute(2, 0, 3, 1, 4).unbind()
    if rotation is None or not compiling:
        return _SplitPacked.apply(packed, *(rotation or (None, None)), values)
    unturned, value = packed.split([packed.shape[2] - values, values], dim=2)
    turned = rotate(unturned, Rotation(*(table[:, :, None] for table in rotation)))
    return tuple(part for parts in (turned, value) for part in parts.permute(2, 0, 3, 1, 4).unbind())


class _SplitPacked(torch.autograd.Function):
    """Rotates and splits; unlike the backward pass of ``unbind``, which copies twice, this one copies at most once."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor | None, sin: Tensor | None, values: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.values = values
        if cos is not None and sin is not None:
            turn(packed[:, :, :-values], cos, sin)
        return tuple(packed.permute(2, 0, 3, 1, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = _pack(gradients)
        if cos is not None:
            turn(gradient[:, :, : -ctx.values], cos, sin.neg())
        return gradient, None, None, None


def _pack(gradients: tuple[Tensor, ...]) -> Tensor:
    """Join the gradients of parts <float>[B, H, S, d_h] into one tensor [B, S, parts, H, d_h].

    Nothing is copied if they are views of such a tensor.
    """
    batch, heads, length, width = gradients[0].shape
    shape = (batch, length, len(gradients), heads, width)
    expected = torch.empty(shape, device="meta", dtype=gradients[0].dtype).permute(2, 0, 3, 1, 4)
    storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    if len(storages) == 1 and all(
        gradient.stride() == view.stride() and gradient.storage_offset() == view.storage_offset()
        for gradient, view in zip(gradients, expected)
    ):
        return gradients[0].as_strided(shape, torch.empty(shape, device="meta").stride())
    return torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)


def join(visible: Tensor, masks: Tensor) -> Tensor:
    """Join visible tokens <float>[B, S, ...] and masks <float>[M, ...] to stream rows <float>[B * S + M, ...]."""
    return torch.cat([visible.flatten(0, 1), masks])


def split(rows: Tensor, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Split stream rows [B * S + M, ...]: visible tokens [B, S, ...], and masks [M, ...]."""
    # The backward pass of ``split`` joins gradients; that of slices would add zeros.
    visible, masks = rows.split([sequences * length, len(rows) - sequences * length])
    return visible.unflatten(0, (sequences, length)), masks


class Parts(NamedTuple):
    """The (queries,) keys and values of a layer."""

    visible: tuple[Tensor, ...]  # of visible tokens, <float>[B, H, S, d_h]
    masks: tuple[Tensor, ...]  # of masks, <float>[M, H, d_h]
    read: tuple[Tensor, ...]  # keys and values of visible tokens that the masks read


def split_streams(packed: Tensor, context: AttentionContext, masks: MaskStream, rotary_base: int | None) -> Parts:
    """Split the joint (queries,) keys and values of all stream rows <float>[B * S + M, parts, H, d_h]; rotate them.

    Except in compiled graphs, ``packed`` is rotated in place, so nothing else may use it.
    """
    assert context.keys.positions is not None
    sequences, length = context.keys.positions.shape
    rotation = None if rotary_base is None else masks.rotations[rotary_base]
    if not torch.compiler.is_compiling():
        count = packed.shape[1]
        pieces = _SplitStreams.apply(packed, sequences, length, *(rotation or (None, None)))
        return Parts(pieces[:count], pieces[count : 2 * count], pieces[2 * count :])
    if rotation is None:
        parts = packed.unbind(1)
    else:
        rotated = split_packed(packed[None], rotation)
        parts = tuple(heads.squeeze(0).transpose(0, 1) for heads in rotated)
    visible, of_masks = zip(*(split(part, sequences, length) for part in parts))
    visible = tuple(part.transpose(1, 2) for part in visible)
    return Parts(visible, of_masks, visible[-2:])


def context_of_masks(masks: MaskStream, window: int | None) -> tuple[AttentionContext, int | None]:
    """Return the context of the masks' queries for keys from ``keys_of_masks``, and the window that is left to hide."""
    if _in_blocks(masks, window):
        return masks.full_context, window
    return (masks.context if window is None else windowed(masks.context, window)), None


def keys_of_masks(visible: Tensor, of_masks: Tensor, masks: MaskStream, window: int | None) -> Tensor:
    """Return the keys, or values, that masks read: <float>[B, H, S + Q, d_h], or in slots <float>[B, H, T, d_h].

    They are those of the visible tokens <float>[B, H, S, d_h] and of the masks <float>[M, H, d_h].
    """
    outputs, sequences = masks.context.outputs, len(visible)
    assert outputs is not None
    if not _in_blocks(masks, window):
        return torch.cat([visible, outputs.pad(of_masks, sequences).transpose(1, 2)], dim=2)
    placed = outputs.place(of_masks, sequences, masks.full_context.length).flatten(0, 1)
    rows = visible.transpose(1, 2).flatten(0, 1).index_select(0, masks.decoder_rows)
    placed = placed.index_copy(0, masks.decoder_slots, rows)
    return placed.unflatten(0, (sequences, -1)).transpose(1, 2)


def _in_blocks(masks: MaskStream, window: int | None) -> bool:
    """Return True if masks read a window in blocks of slots: faster than whole sequences with far tokens hidden."""
    if window is None:
        return False
    if torch.compiler.is_compiling():
        return True
    outputs = masks.context.outputs
    assert outputs is not None
    # In blocks, every position asks for the keys of three blocks.
    return outputs.length * masks.context.length > 3 * block_size(window) * masks.full_context.length


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
        visible, masks = _views(packed, *ctx.sizes)
        return (*visible, *masks, *visible[-2:].unbind())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        packed = next(each for each in gradients if each is not None).new_empty(ctx.shape)
        visible, masks = _views(packed, *ctx.sizes)
        count = len(visible)
        of_visible, of_masks, of_read = gradients[:count], gradients[count : 2 * count], gradients[2 * count :]
        for view, *summands in zip(visible, of_visible, (None,) * (count - 2) + of_read):
            _write(view, *summands)
        for view, gradient in zip(masks, of_masks):
            _write(view, gradient)
        cos, sin = ctx.saved_tensors
        if cos is not None:
            turn(packed[None, :, :-1], cos, sin.neg())
        return packed, None, None, None, None


def _write(view: Tensor, *gradients: Tensor | None) -> None:
    """Write the sum of up to two gradients."""
    summands = [gradient for gradient in gradients if gradient is not None]
    if len(summands) == 2:
        torch.add(*summands, out=view)
    else:
        view.copy_(summands[0]) if summands else view.zero_()


def _views(packed: Tensor, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Return views of visible tokens <float>[parts, B, H, S, d_h] and of masks <float>[parts, M, H, d_h]."""
    parts = packed.transpose(0, 1)
    visible = parts[:, : sequences * length].unflatten(1, (sequences, length))
    return visible.transpose(2, 3), parts[:, sequences * length :]
