"""The two uses of the token embeddings: the LM head with its loss (Equation 1), and the look-up of a batch's tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.autocast import LayerNorm
from fairseq_maelm.modules.linear_cross_entropy import MaskedTokenLoss, linear_cross_entropy, linear_log_probabilities


class MaskedTokenHead(nn.Module):
    """The LM head: dense layer, GELU, LayerNorm, then a projection by the tied token embeddings plus a bias.

    ``input_dim`` is the width of the decoder's states, or of the encoder's without a decoder. If it is not that of the
    token embeddings, another linear layer projects to theirs. ``modern`` omits the biases of the dense layer and
    LayerNorm, as ModernBERT does.
    """

    def __init__(
        self, input_dim: int, embed_dim: int, vocabulary_size: int, layer_norm_eps: float, modern: bool
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(input_dim, input_dim, bias=not modern)
        self.layer_norm = LayerNorm(input_dim, eps=layer_norm_eps, bias=not modern)
        same_width = input_dim == embed_dim
        self.output_projection = nn.Identity() if same_width else nn.Linear(input_dim, embed_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Return logits <float>[..., V] of states <float>[..., input_dim]; ``embedding`` is <float>[V, D]."""
        return F.linear(self._transform(states), embedding, self.bias)

    def loss(self, states: Tensor, embedding: Tensor, target: Tensor) -> MaskedTokenLoss:
        """Return the cross-entropy of ``forward`` with targets <int64>[M], without storing all logits."""
        return linear_cross_entropy(self._transform(states), embedding, self.bias, target)

    def log_probabilities(self, states: Tensor, embedding: Tensor, target: Tensor) -> Tensor:
        """Return the log-probabilities <float32>[M, K] of K targets <int64>[M, K] for each state."""
        return linear_log_probabilities(self._transform(states), embedding, self.bias, target)

    def _transform(self, states: Tensor) -> Tensor:
        return self.output_projection(self.layer_norm(F.gelu(self.dense(states))))


# The gradient of the table is as large as the table. With separate look-ups of tokens and mask, autograd would make two
# such gradients, almost all zeros, and add them.


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
