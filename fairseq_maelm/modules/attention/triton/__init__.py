"""Attention by Triton kernels that look up the relative bias themselves.

The kernels need a relative bias or a window, and support no other hidden keys than padding. In all other cases, such as
decoders, torch's attention is used.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.packed_qkv import attend_parts


def _find_kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module("fairseq_maelm.modules.attention.triton.operator")
    except ImportError:
        return None


# Found once, because every layer of every step needs them.
_KERNELS: Any = _find_kernels()


def is_installed() -> bool:
    """Return True if the kernels can be imported, with or without a GPU."""
    return _KERNELS is not None


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float, asked_for: bool = True
) -> Tensor:
    """Compute ``reference.attend``.

    Args:
        query: see ``reference.attend``.
        key: see ``reference.attend``.
        value: see ``reference.attend``.
        bias: see ``reference.attend``.
        dropout: see ``reference.attend``.
        asked_for: refuse tensors that the kernels cannot take, instead of using torch's attention.

    Raises:
        ValueError: the kernels cannot run; the message says why.
    """
    if not _at_home(query, bias, asked_for):
        return sdpa.attend(query, key, value, bias, dropout)
    # The kernels already return zeros for sequences without any visible key.
    return _KERNELS.relative_attention(query, key, value, *_arguments(query, bias, dropout))


def attend_qkv(qkv: Tensor, bias: AttentionBias | None, dropout: float, asked_for: bool = True) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query = qkv[:, :, 0].transpose(1, 2)
    if not _at_home(query, bias, asked_for):
        return attend_parts(sdpa.attend, qkv, bias, dropout)
    return _KERNELS.relative_attention_qkv(qkv, *_arguments(query, bias, dropout))


def skips_hidden(query: Tensor, bias: AttentionBias, asked_for: bool = True) -> bool:
    """Return True if ``attend``, given this bias with a window, would skip the keys that the window hides."""
    return (bias.of_distance is not None or bias.max_positions is not None) and _takes(query, bias, asked_for)


def refusal(dtype: torch.dtype, device: torch.device, width: int) -> str | None:
    """Return the reason why the kernels cannot compute attention with heads of this width, or None if they can."""
    if not is_installed():
        return "the package triton is not installed"
    return _KERNELS.unavailable_because(torch.empty(0, 1, 1, width, dtype=dtype, device=device))


def _at_home(query: Tensor, bias: AttentionBias | None, asked_for: bool) -> bool:
    if bias is None or (bias.of_distance is None and (bias.window is None or bias.max_positions is None)):
        return False
    return _takes(query, bias, asked_for)


def _takes(query: Tensor, bias: AttentionBias, asked_for: bool) -> bool:
    if bias.query_positions is not None or bias.hidden is not None or bias.causal:
        return False
    reason = refusal(query.dtype, query.device, query.shape[-1])
    if reason is not None and asked_for:
        raise ValueError(f"--attention triton cannot run: {reason}. Use --attention auto")
    return reason is None


def _arguments(
    query: Tensor, bias: AttentionBias | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor | None, float, Tensor | None, int | None]:
    """Return the kernels' other arguments: relative bias, positions, lengths, dropout, seed of dropout, window."""
    assert bias is not None and bias.positions is not None
    of_distance = bias.of_distance
    if of_distance is None:
        assert bias.max_positions is not None
        of_distance = query.new_zeros(query.shape[1], 2 * bias.max_positions - 1)
    # Drawn on the device to avoid synchronization.
    seed = torch.randint(2**62, (1,), device=query.device) if dropout else None
    return of_distance.float(), bias.positions, bias.lengths, dropout, seed, bias.window
