"""The ways of computing attention, and the choice between them. All mean the same as ``attend_plainly``."""

import importlib
import importlib.util
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.cpu import attend_on_cpu


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """Attention written out, the reference. Arguments and result as in ``layers.attend`` beside it."""
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
    return triton_kernels().relative_attention(query, key, value, *kernel_arguments(query, bias, dropout))


def kernel_arguments(
    query: Tensor, bias: Optional[AttentionBias], dropout: float
) -> Tuple[Tensor, Tensor, Optional[Tensor], float, Optional[Tensor]]:
    """What the kernels take besides queries, keys and values: bias, positions, lengths, dropout and its seed."""
    assert bias is not None and bias.of_distance is not None and bias.positions is not None
    # Drawn on the device: nobody waits for it.
    seed = torch.randint(2**62, (1,), device=query.device) if dropout else None
    return bias.of_distance.float(), bias.positions, bias.lengths, dropout, seed


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


def _find_kernels() -> Optional[ModuleType]:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module("fairseq_maelm.modules.attention.triton.operator")
    except ImportError:
        return None


# Found once: every layer of every step asks for it.
_KERNELS = _find_kernels()


def triton_kernels() -> Any:
    """The module of CUDA kernels, or None where triton is not installed."""
    return _KERNELS


def kernels_refuse(dtype: torch.dtype, device: torch.device, width: int) -> Optional[str]:
    """Why the kernels cannot compute attention with heads of a width, or None when they can."""
    if triton_kernels() is None:
        return "the package triton is not installed"
    return triton_kernels().unavailable_because(torch.empty(0, 1, 1, width, dtype=dtype, device=device))


def check_path(path: str) -> None:
    """Refuse a path that this machine cannot run.

    Raises:
        ValueError: says why and what to choose.
    """
    if path not in ATTENTION_PATHS:
        raise ValueError(f"unknown --attention {path}: choose one of {', '.join(ATTENTION_PATHS)}")
    if path == "triton" and not torch.cuda.is_available():
        raise ValueError(
            "--attention triton needs a CUDA GPU and torch finds none here: use --attention auto, or for a checkpoint "
            "that was trained with it --model-overrides \"{'attention': 'auto'}\""
        )
    if path == "triton" and triton_kernels() is None:
        raise ValueError("--attention triton needs the package triton: install it, or use --attention auto")


def choose_path(query: Tensor, bias: Optional[AttentionBias], dropout: float, path: str = "auto") -> str:
    """Choose how attention is computed.

    Args:
        query: <float>[B, H, Q, d_h].
        bias: what is added to the logits, or None.
        dropout: of the attention weights.
        path: one of ``ATTENTION_PATHS``. "triton" holds where its kernels are at home: with a bias of distances and
            nothing hidden but padding; elsewhere torch's attention stands in.

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
    if bias.hidden is not None or bias.causal:
        return "sdpa"
    reason = kernels_refuse(query.dtype, query.device, query.shape[-1])
    if reason is None:
        return "triton"
    if forced:
        raise ValueError(f"--attention triton cannot run: {reason}. Use --attention auto")
    return "sdpa"
