"""The backends of attention, and the choice between them. All mean the same as ``plain.attend``."""

from functools import cache, partial
from typing import Callable, Dict, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import cpu, plain, sdpa, triton
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.qkv import Attend, attend_parts


class Backend(NamedTuple):
    """A way of computing ``plain.attend``, and the same for one tensor of queries, keys and values."""

    attend: Attend
    attend_qkv: Callable[[Tensor, Optional[AttentionBias], float], Tensor]


def _of_parts(attend: Attend) -> Backend:
    return Backend(attend, partial(attend_parts, attend))


def _attend_anywhere(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float
) -> Tensor:
    """What is fastest where the tensors are, as ``plain.attend``."""
    if query.device.type == "cuda":
        return triton.attend(query, key, value, bias, dropout, asked_for=False)
    # torch's fused CPU attention has neither dropout nor a gradient of the bias.
    needs_ours = query.device.type == "cpu" and (dropout > 0.0 or (bias is not None and bias.needs_gradient))
    return (cpu if needs_ours else sdpa).attend(query, key, value, bias, dropout)


def _attend_qkv_anywhere(qkv: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """What is fastest where the tensor is, as ``qkv.attend_parts``."""
    if qkv.device.type == "cuda":
        return triton.attend_qkv(qkv, bias, dropout, asked_for=False)
    return attend_parts(_attend_anywhere, qkv, bias, dropout)


# By the values of --attention. A layer takes its own when it is made.
BACKENDS: Dict[str, Backend] = {
    "auto": Backend(_attend_anywhere, _attend_qkv_anywhere),
    "plain": _of_parts(plain.attend),
    "sdpa": _of_parts(sdpa.attend),
    "cpu": _of_parts(cpu.attend),
    "triton": Backend(triton.attend, triton.attend_qkv),
}
ATTENTION_BACKENDS = tuple(BACKENDS)
# Where these can run depends on the machine: a choice of the run, that a checkpoint need not keep.
BACKENDS_OF_A_MACHINE = ("cpu", "triton")


@cache
def outside_of_graphs(backend: Backend) -> Backend:
    """Return the same, not traced by torch.compile; one for all layers, so that these share their compiled code."""
    # A decorator would import torch's compiler, which takes seconds, for every command.
    return Backend(*map(torch.compiler.disable, backend))
