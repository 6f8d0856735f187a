"""Attention in Triton kernels, which look the bias of distances up by themselves.

The kernels are at home with a bias of distances and nothing hidden but padding; elsewhere, as in decoders, torch's
attention is the best there is and stands in.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.qkv import attend_parts


def _find_kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module("fairseq_maelm.modules.attention.triton.operator")
    except ImportError:
        return None


# Found once: every layer of every step asks for it.
_KERNELS: Any = _find_kernels()


def is_installed() -> bool:
    """Whether there are kernels at all; a GPU is another question."""
    return _KERNELS is not None


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float, asked_for: bool = True
) -> Tensor:
    """Attention as ``plain.attend`` describes it.

    Args: as there, and
        asked_for: refuse tensors that the kernels cannot take; otherwise torch's attention stands in.

    Raises:
        ValueError: says why the kernels cannot run.
    """
    if not _at_home(query, bias, asked_for):
        return sdpa.attend(query, key, value, bias, dropout)
    # Sequences without any visible key get their zeros from the kernels.
    return _KERNELS.relative_attention(query, key, value, *_arguments(query, bias, dropout))


def attend_qkv(qkv: Tensor, bias: AttentionBias | None, dropout: float, asked_for: bool = True) -> Tensor:
    """The same for queries, keys and values that one matrix product made, <float>[B, S, 3, H, d_h], in place.

    Returns:
        <float>[B, S, H, d_h].
    """
    query = qkv[:, :, 0].transpose(1, 2)
    if not _at_home(query, bias, asked_for):
        return attend_parts(sdpa.attend, qkv, bias, dropout)
    return _KERNELS.relative_attention_qkv(qkv, *_arguments(query, bias, dropout))


def refusal(dtype: torch.dtype, device: torch.device, width: int) -> str | None:
    """Why the kernels cannot compute attention with heads of a width, or None when they can."""
    if not is_installed():
        return "the package triton is not installed"
    return _KERNELS.unavailable_because(torch.empty(0, 1, 1, width, dtype=dtype, device=device))


def _at_home(query: Tensor, bias: AttentionBias | None, asked_for: bool) -> bool:
    if bias is None or bias.of_distance is None or bias.query_positions is not None:
        return False
    if bias.hidden is not None or bias.causal:
        return False
    reason = refusal(query.dtype, query.device, query.shape[-1])
    if reason is not None and asked_for:
        raise ValueError(f"--attention triton cannot run: {reason}. Use --attention auto")
    return reason is None


def _arguments(
    query: Tensor, bias: AttentionBias | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor | None, float, Tensor | None]:
    """What the kernels take besides queries, keys and values: bias, positions, lengths, dropout and its seed."""
    assert bias is not None and bias.of_distance is not None and bias.positions is not None
    # Drawn on the device: nobody waits for it.
    seed = torch.randint(2**62, (1,), device=query.device) if dropout else None
    return bias.of_distance.float(), bias.positions, bias.lengths, dropout, seed
