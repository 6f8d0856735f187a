"""The attention backends, and the choice between them. All compute the same as ``reference.attend``."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import cpu, reference, sdpa, triton
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.packed_qkv import Attend, attend_parts


class Backend(NamedTuple):
    """An implementation of ``reference.attend``, and one that takes queries, keys and values as one tensor."""

    attend: Attend
    attend_qkv: Callable[[Tensor, AttentionBias | None, float], Tensor]


def _of_parts(attend: Attend) -> Backend:
    return Backend(attend, partial(attend_parts, attend))


# For rotary attention in bfloat16 on a CPU: with up to so many attention weights in a batch, the plain formula takes at
# most half the time of torch's. With more it leaves the cache, and its backward pass is slower than this package's.
_WEIGHTS_WRITTEN_OUT = 2**23


def _attend_anywhere(query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    if query.device.type == "cuda":
        return triton.attend(query, key, value, bias, dropout, asked_for=False)
    if query.device.type != "cpu" or torch.compiler.is_compiling():  # the package's CPU functions cannot be traced
        return sdpa.attend(query, key, value, bias, dropout)
    if not (torch.is_grad_enabled() or dropout) and key.shape[2] <= cpu.SHORT:
        return cpu.attend_short(query, key, value, bias)
    # torch's fused CPU attention has neither dropout nor a gradient of the bias, and a slow backward pass in bfloat16.
    needs_ours = dropout > 0.0 or (bias is not None and bias.needs_gradient)
    slow = query.dtype == torch.bfloat16 and query.requires_grad and bias is not None and bool(bias.rotations)
    if slow and not needs_ours and query.shape[:3].numel() * key.shape[2] <= _WEIGHTS_WRITTEN_OUT:
        return reference.attend(query, key, value, bias, dropout)
    return (cpu if needs_ours or slow else sdpa).attend(query, key, value, bias, dropout)


def _attend_qkv_anywhere(qkv: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    if qkv.device.type == "cuda":
        return triton.attend_qkv(qkv, bias, dropout, asked_for=False)
    return attend_parts(_attend_anywhere, qkv, bias, dropout)


# Keys are the values of --attention.
BACKENDS: dict[str, Backend] = {
    "auto": Backend(_attend_anywhere, _attend_qkv_anywhere),
    "plain": _of_parts(reference.attend),
    "sdpa": _of_parts(sdpa.attend),
    "cpu": _of_parts(cpu.attend),
    "triton": Backend(triton.attend, triton.attend_qkv),
}
ATTENTION_BACKENDS = tuple(BACKENDS)
# These run on some machines only, so a checkpoint does not keep the choice.
BACKENDS_OF_A_MACHINE = ("cpu", "triton")
