"""Attention by its formula: the reference for all other backends."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.attention.bias import AttentionBias, zero_where_blind


def attend(query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    """Compute scaled dot-product attention (section 2.1): softmax(Q K^T / sqrt(d_h) + bias) V.

    Args:
        query: <float>[B, H, Q, d_h].
        key: <float>[B, H, S, d_h]; Q = S in self-attention.
        value: <float>[B, H, S, d_h].
        bias: bias of the logits, or None. Relative and causal biases need Q = S.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[B, H, Q, d_h]. Sequences whose keys are all hidden get zeros; results at padding are undefined.
    """
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    added = None if bias is None else bias.dense(key)
    if added is not None:
        logits = logits + added
    return zero_where_blind(F.dropout(logits.softmax(dim=-1), dropout) @ value, key, bias)
