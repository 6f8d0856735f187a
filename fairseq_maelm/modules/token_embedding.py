"""Look up the embeddings of a batch's tokens and of the mask together.

The gradient of the table is as large as the table. With two look-ups, autograd would make two such gradients, almost
all zeros, and add them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def embed_tokens_and_mask(table: nn.Embedding, tokens: Tensor, mask_index: int) -> tuple[Tensor, Tensor]:
    """Return the embeddings <float>[B, S, D] of tokens <int64>[B, S], and the embedding <float>[D] of the mask."""
    return _Lookup.apply(table.weight, tokens, mask_index, table.padding_idx)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, tokens: Tensor, mask_index: int, padding_idx: int | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens)
        ctx.symbols, ctx.width, ctx.mask_index = *weight.shape, mask_index
        ctx.padding_idx = -1 if padding_idx is None else padding_idx
        ctx.set_materialize_grads(False)  # a model without a decoder does not use the mask's embedding
        return F.embedding(tokens, weight), weight[mask_index].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_tokens: Tensor | None, of_mask: Tensor | None) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        gradient = None
        if of_tokens is not None:
            gradient = torch.ops.aten.embedding_dense_backward(of_tokens, tokens, ctx.symbols, ctx.padding_idx, False)
        elif of_mask is not None:
            gradient = of_mask.new_zeros(ctx.symbols, ctx.width)
        if gradient is not None and of_mask is not None:
            gradient[ctx.mask_index] += of_mask
        return gradient, None, None, None
