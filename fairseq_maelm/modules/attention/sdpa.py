"""Attention by torch's own fused function, with a dense bias."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.attention.bias import AttentionBias, zero_where_blind


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """Attention as ``plain.attend`` describes it."""
    added = None if bias is None else bias.dense(key)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout)
    return zero_where_blind(output, key, bias)
