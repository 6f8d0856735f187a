"""Attention by torch's fused functions: without a mask if possible, otherwise with a dense bias.

On a GPU, torch chooses among several libraries. cuDNN, the default on the newest GPUs, is excluded: it spends half a
second on a plan for every new shape, and its gradients can be NaN with a mask.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairseq_maelm.modules.attention.context import AttentionContext, zero_where_blind

_GPU_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_WIDEST_HEAD = 128


def attend(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute ``plain_attention`` by torch's fused functions."""
    if context.boundaries is not None and query.shape == key.shape and _has_flash(query):
        return attend_between(context.boundaries, query, key, value, dropout)
    added = None if context.only_causal else context.dense(key)
    with sdpa_kernel(_GPU_BACKENDS) if query.is_cuda else nullcontext():
        output = F.scaled_dot_product_attention(query, key, value, added, dropout, context.only_causal)
    return zero_where_blind(output, key, context)


def attend_between(boundaries: Tensor, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Use flash attention (Dao, 2023) for <float16 or bfloat16>[B, H, S, d_h]; return a tensor of the same shape.

    Padding is computed as separate sequences between ``boundaries`` <int32>[2 B + 1], so that no mask is needed.
    """
    length = query.shape[2]
    rows = (heads.transpose(1, 2).flatten(0, 1) for heads in (query, key, value))
    # torch has a public function only since 2.10. In all versions, torch's nested tensors call this private one.
    output = torch.ops.aten._flash_attention_forward(
        *rows, boundaries, boundaries, length, length, dropout, False, False
    )
    return output[0].unflatten(0, (-1, length)).transpose(1, 2)


def _has_flash(query: Tensor) -> bool:
    if not query.is_cuda or query.dtype not in _FLASH_DTYPES or torch.version.cuda is None:
        return False
    width = query.shape[-1]
    return width % 8 == 0 and width <= _FLASH_WIDEST_HEAD and torch.cuda.get_device_properties(query.device).major >= 8
