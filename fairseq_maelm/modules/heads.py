"""Prediction heads: masked tokens in pretraining, classes of sentences or tokens in fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.linear_cross_entropy import (
    MaskedTokenLoss,
    linear_cross_entropy,
    linear_log_probabilities,
)
from fairseq_maelm.modules.precision import LAYER_NORM_EPS, LayerNorm


class MaskedTokenHead(nn.Module):
    """Dense, GELU, LayerNorm, then the product with the encoder's token embeddings, which are tied, plus a bias.

    Args:
        input_dim: width of the decoder's states, or of the encoder's where there is no decoder.
        embed_dim: D, width of the token embeddings; a linear projection leads there from another width.
        vocabulary_size: V.
        layer_norm_eps: what LayerNorm adds to the variance.
        modern: leave out the biases of dense and LayerNorm, as ModernBERT does.
    """

    def __init__(
        self,
        input_dim: int,
        embed_dim: int,
        vocabulary_size: int,
        layer_norm_eps: float = LAYER_NORM_EPS,
        modern: bool = False,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(input_dim, input_dim, bias=not modern)
        self.layer_norm = LayerNorm(input_dim, eps=layer_norm_eps, bias=not modern)
        self.output_projection = None if input_dim == embed_dim else nn.Linear(input_dim, embed_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Args:
            states: <float>[..., input_dim].
            embedding: <float>[V, D] token embeddings.

        Returns:
            logits <float>[..., V].
        """
        return F.linear(self._transform(states), embedding, self.bias)

    def loss(self, states: Tensor, embedding: Tensor, target: Tensor) -> MaskedTokenLoss:
        """Cross-entropy of ``forward`` with targets, without holding its logits.

        Args:
            states: <float>[M, input_dim].
            embedding: <float>[V, D] token embeddings.
            target: <int64>[M].
        """
        return linear_cross_entropy(self._transform(states), embedding, self.bias, target)

    def log_probabilities(self, states: Tensor, embedding: Tensor, target: Tensor) -> Tensor:
        """Return the log-probabilities <float32>[M, K] of K targets <int64>[M, K] for each state; as ``loss``."""
        return linear_log_probabilities(self._transform(states), embedding, self.bias, target)

    def _transform(self, states: Tensor) -> Tensor:
        states = self.layer_norm(F.gelu(self.dense(states)))
        return states if self.output_projection is None else self.output_projection(states)


class ClassificationHead(nn.Module):
    """Sentence-level head as in fairseq's RoBERTa: dropout, dense, tanh, dropout, projection, on the first token.

    Args:
        embed_dim: D.
        inner_dim: width of the dense layer.
        num_classes: outputs.
        dropout: before each of the two projections, in [0, 1).
    """

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(embed_dim, inner_dim)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inner_dim, num_classes)

    def forward(self, states: Tensor) -> Tensor:
        """<float>[B, S, D] to logits <float>[B, num_classes]."""
        pooled = torch.tanh(self.dense(self.dropout(states[:, 0])))
        return self.out_proj(self.dropout(pooled))


class ModernClassificationHead(ClassificationHead):
    """Sentence-level head as in ModernBERT: dense without bias, GELU, LayerNorm, dropout, projection."""

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, dropout: float, layer_norm_eps: float) -> None:
        super().__init__(embed_dim, inner_dim, num_classes, dropout)
        self.dense = nn.Linear(embed_dim, inner_dim, bias=False)
        self.layer_norm = LayerNorm(inner_dim, eps=layer_norm_eps, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """<float>[B, S, D] to logits <float>[B, num_classes]."""
        return self.out_proj(self.dropout(self.layer_norm(F.gelu(self.dense(states[:, 0])))))


class TokenHead(nn.Module):
    """Scores of every token: dropout and one projection.

    Args:
        embed_dim: D.
        num_outputs: scores of a token: tags, or 2 for the start and the end of an answer.
        dropout: before the projection, in [0, 1).
    """

    def __init__(self, embed_dim: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(embed_dim, num_outputs)

    def forward(self, states: Tensor) -> Tensor:
        """<float>[B, S, D] to logits <float>[B, S, num_outputs]."""
        return self.out_proj(self.dropout(states))


class ModernTokenHead(TokenHead):
    """Scores of every token as in ModernBERT: dense without bias, GELU, LayerNorm, dropout, projection."""

    def __init__(self, embed_dim: int, num_outputs: int, dropout: float, layer_norm_eps: float) -> None:
        super().__init__(embed_dim, num_outputs, dropout)
        # Its name tells a checkpoint's head on tokens from one on sentences, whose dense layer is "dense".
        self.transform = nn.ModuleDict(
            {
                "dense": nn.Linear(embed_dim, embed_dim, bias=False),
                "layer_norm": LayerNorm(embed_dim, eps=layer_norm_eps, bias=False),
            }
        )

    def forward(self, states: Tensor) -> Tensor:
        """<float>[B, S, D] to logits <float>[B, S, num_outputs]."""
        return super().forward(self.transform["layer_norm"](F.gelu(self.transform["dense"](states))))
