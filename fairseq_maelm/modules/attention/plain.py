"""Attention written out: the reference that all other backends mean."""

import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.attention.bias import AttentionBias, zero_where_blind


def attend(query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    """Scaled dot-product attention (section 2.1): softmax(Q K^T / sqrt(d_h) + bias) V.

    Args:
        query: <float>[B, H, Q, d_h].
        key, value: <float>[B, H, S, d_h]; in self-attention Q is S.
        bias: added to the logits, or None. One of distances, or a causal one, needs Q = S.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[B, H, Q, d_h]; zeros for sequences whose keys are all hidden. What queries at padding get means nothing.
    """
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    added = None if bias is None else bias.dense(key)
    if added is not None:
        logits = logits + added
    return zero_where_blind(F.dropout(logits.softmax(dim=-1), dropout) @ value, key, bias)
