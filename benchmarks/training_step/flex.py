"""FlexAttention with a relative bias, for comparison with our kernels: it has no dropout and no padding."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from fairseq_maelm.modules.attention import backends
from fairseq_maelm.modules.attention.context import AttentionContext


def replace_sdpa(device: str) -> None:
    """Let ``--attention sdpa`` run FlexAttention in layers with a relative bias: compiled, but not on a CPU."""
    plain = backends.BACKENDS["sdpa"]
    run = flex_attention.flex_attention
    if device == "cuda":
        run = torch.compile(run, dynamic=False)
    else:
        # On a CPU it has no backward pass when compiled, and refuses all gradients; its plain form has one.
        flex_attention._validate_device = lambda *_: None

    def attend(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float) -> Tensor:
        if context.relative_bias is None:
            return plain.attend(query, key, value, context, dropout)
        return attend_flex(run, query, key, value, context, dropout)

    backends.BACKENDS["sdpa"] = backends._of_parts("FlexAttention", attend)


def attend_flex(
    run: Any, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float
) -> Tensor:
    """Compute ``plain_attention`` by ``run``, flex_attention or its compiled form; refuse dropout and hidden keys."""
    bias, hidden = context.relative_bias, context.visibility
    if dropout or hidden.lengths is not None or hidden.hidden is not None or hidden.causal:
        raise ValueError("FlexAttention has no dropout, and this benchmark gives it no padding: --dropout 0")
    assert bias is not None and context.keys.positions is not None and context.queries.positions is not None
    batch, middle = len(query), bias.shape[1] // 2
    of_keys = context.keys.positions.expand(batch, -1)
    of_queries = context.queries.positions.expand(batch, -1)

    def add_bias(score: Tensor, sequence: Tensor, head: Tensor, asking: Tensor, asked: Tensor) -> Tensor:
        return score + bias[head, of_keys[sequence, asked] - of_queries[sequence, asking] + middle]

    result: Tensor = run(query, key, value, score_mod=add_bias)
    return result
