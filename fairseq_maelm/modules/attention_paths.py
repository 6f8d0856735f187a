"""The ways of computing attention, and the choice between them. All mean the same as ``attend_plainly``."""

import importlib
from types import ModuleType
from typing import Callable, Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.attention_bias import AttentionBias
from fairseq_maelm.modules.attention_cpu import attend_on_cpu


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """Attention written out, the reference. Arguments and result as in ``fairseq_maelm.modules.attention.attend``."""
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    added = None if bias is None else bias.dense(key)
    if added is not None:
        logits = logits + added
    return F.dropout(logits.softmax(dim=-1), dropout) @ value


def attend_by_torch(query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """torch's own attention with a dense bias. Arguments and result as in ``attend_plainly``."""
    added = None if bias is None else bias.dense(key)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout)


def attend_by_triton(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float
) -> Tensor:
    """The CUDA kernels, which look the bias up by themselves. Arguments and result as in ``attend_plainly``."""
    kernels = triton_kernels()
    assert kernels is not None and bias is not None and bias.of_distance is not None
    # Drawn on the device: neither waits for the other.
    seed = kernels.draw_seed(query.device) if dropout else None
    return kernels.relative_attention(query, key, value, bias.of_distance, bias.positions, bias.lengths, dropout, seed)


Path = Callable[[Tensor, Tensor, Tensor, Optional[AttentionBias], float], Tensor]

PATHS: Dict[str, Path] = {
    "plain": attend_plainly,
    "sdpa": attend_by_torch,
    "cpu": attend_on_cpu,
    "triton": attend_by_triton,
}
ATTENTION_PATHS = ("auto", *PATHS)
# Where these can run depends on the machine: a choice of the run, that a checkpoint need not keep.
PATHS_OF_A_MACHINE = ("cpu", "triton")


def triton_kernels() -> Optional[ModuleType]:
    """The module of CUDA kernels, or None where triton is not installed."""
    try:
        return importlib.import_module("fairseq_maelm.modules.attention_triton")
    except ImportError:
        return None


def check_path(path: str) -> None:
    """Refuse a path that this machine cannot run.

    Raises:
        ValueError: says why and what to choose.
    """
    if path not in ATTENTION_PATHS:
        raise ValueError(f"unknown --attention {path}: choose one of {', '.join(ATTENTION_PATHS)}")
    if path == "triton" and not torch.cuda.is_available():
        raise ValueError("--attention triton needs a CUDA GPU and torch finds none here: use --attention auto")
    if path == "triton" and triton_kernels() is None:
        raise ValueError("--attention triton needs the package triton: install it, or use --attention auto")


def choose_path(query: Tensor, bias: Optional[AttentionBias], dropout: float, path: str = "auto") -> str:
    """Choose how attention is computed.

    Args:
        query: <float>[B, H, Q, d_h].
        bias: what is added to the logits, or None.
        dropout: of the attention weights.
        path: one of ``ATTENTION_PATHS``. "triton" holds where there is a bias of distances, which is what its kernels
            are for; elsewhere torch's attention stands in.

    Returns:
        a key of ``PATHS``.

    Raises:
        ValueError: if the path is forced and cannot run on these tensors.
    """
    on_cpu = query.device.type == "cpu"
    if path == "cpu" and not on_cpu:
        raise ValueError(f"--attention cpu cannot run on {query.device.type}: use --attention auto, or add --cpu")
    if path == "triton" or (path == "auto" and query.device.type == "cuda"):
        return _triton_or_torch(query, bias, path == "triton")
    if path != "auto":
        return path
    # torch's fused CPU attention has neither dropout nor a gradient of the bias.
    return "cpu" if on_cpu and (dropout > 0.0 or (bias is not None and bias.needs_gradient)) else "sdpa"


def _triton_or_torch(query: Tensor, bias: Optional[AttentionBias], forced: bool) -> str:
    if bias is None or bias.of_distance is None or bias.query_positions is not None:
        return "sdpa"
    kernels = triton_kernels() if query.device.type == "cuda" else None
    suits = bias.hidden is None and not bias.causal
    if kernels is not None and suits and kernels.available(query):
        return "triton"
    if forced:
        raise ValueError(
            f"--attention triton cannot compute attention of {query.dtype} on {query.device.type} with heads of width "
            f"{query.shape[-1]}: use --attention auto"
        )
    return "sdpa"
