"""The attention backends; "auto" picks the fastest. All compute the same function as ``plain_attention``."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import cpu, sdpa
from fairseq_maelm.modules.attention.context import Attend, AttentionContext, plain_attention
from fairseq_maelm.modules.attention.local import LocalMethod
from fairseq_maelm.modules.attention.streams import attend_parts
from fairseq_maelm.modules.attention.triton import operator as triton


class Backend(NamedTuple):
    """An implementation of ``plain_attention``.

    ``attend`` must respect ``AttentionContext.dense`` and ``blind``; its inputs are already rotated. ``local`` chooses
    how to compute local attention, given query, context without a window, and dropout.
    """

    about: str  # for the help of ``--attention``
    attend: Attend
    attend_qkv: Callable[[Tensor, AttentionContext, float], Tensor]  # ``attend`` of all three in one tensor
    device: str | None = None  # the only type of device that it runs on; None for all
    local: Callable[[Tensor, AttentionContext, float], LocalMethod] = lambda query, context, dropout: LocalMethod.BLOCKS


def _of_parts(about: str, attend: Attend, device: str | None = None) -> Backend:
    return Backend(about, attend, partial(attend_parts, attend), device)


def _attend_anywhere(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    if query.device.type == "cuda":
        return triton.attend(query, key, value, context, dropout, strict=False)
    if query.device.type != "cpu" or torch.compiler.is_compiling():  # the package's CPU functions cannot be traced
        return sdpa.attend(query, key, value, context, dropout)
    if not (torch.is_grad_enabled() or dropout) and key.shape[2] <= cpu.SHORT:
        return cpu.attend_short(query, key, value, context)
    # torch's fused CPU attention has neither dropout nor a gradient of the bias, and a slow backward pass in bfloat16.
    needs_ours = dropout > 0.0 or context.needs_gradient
    return (cpu if needs_ours or _has_slow_gradient(query) else sdpa).attend(query, key, value, context, dropout)


def _has_slow_gradient(query: Tensor) -> bool:
    return query.dtype == torch.bfloat16 and query.requires_grad


def _attend_qkv_anywhere(qkv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    if qkv.device.type == "cuda":
        return triton.attend_qkv(qkv, context, dropout, strict=False)
    return attend_parts(_attend_anywhere, qkv, context, dropout)


def _local_by_triton(query: Tensor, context: AttentionContext, dropout: float) -> LocalMethod:
    return LocalMethod.WHOLE if triton.skips_hidden(query, context) else LocalMethod.BLOCKS


def _local_by_torch(query: Tensor, context: AttentionContext, dropout: float) -> LocalMethod:
    fused = query.device.type == "cpu" and not (dropout or context.needs_gradient or torch.compiler.is_compiling())
    return LocalMethod.WINDOWS if fused else LocalMethod.BLOCKS


def _local_anywhere(query: Tensor, context: AttentionContext, dropout: float) -> LocalMethod:
    if query.device.type == "cuda":
        return LocalMethod.WHOLE if triton.skips_hidden(query, context, strict=False) else LocalMethod.BLOCKS
    return LocalMethod.BLOCKS if _has_slow_gradient(query) else _local_by_torch(query, context, dropout)


# Keys are the values of --attention.
BACKENDS: dict[str, Backend] = {
    "auto": Backend("the fastest on this device", _attend_anywhere, _attend_qkv_anywhere, local=_local_anywhere),
    "plain": _of_parts("plain torch operations", plain_attention),
    "sdpa": _of_parts("torch's fused kernels", sdpa.attend)._replace(local=_local_by_torch),
    "cpu": _of_parts("this package's CPU kernels", cpu.attend, "cpu"),
    "triton": Backend("this package's CUDA kernels", triton.attend, triton.attend_qkv, "cuda", _local_by_triton),
}
# These backends run only on some machines, so checkpoints do not store the choice of one.
BACKENDS_OF_A_MACHINE = tuple(name for name, backend in BACKENDS.items() if backend.device is not None)
