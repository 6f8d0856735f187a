"""The pretraining LM head, and sentence and token heads for fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.autocast import LayerNorm
from fairseq_maelm.modules.linear_cross_entropy import (
    MaskedTokenLoss,
    linear_cross_entropy,
    linear_log_probabilities,
)


class MaskedTokenHead(nn.Module):
    """The LM head: dense layer, GELU, LayerNorm, then a projection by the tied token embeddings plus a bias.

    Args:
        input_dim: width of the decoder's states, or of the encoder's without a decoder.
        embed_dim: width D of the token embeddings. If ``input_dim`` differs, another linear layer projects to D.
        vocabulary_size: number of symbols V.
        layer_norm_eps: epsilon of LayerNorm.
        modern: omit the biases of the dense layer and LayerNorm, as ModernBERT does.
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


class ClassificationHead(nn.Module):
    """Sentence head of fairseq's RoBERTa on the first token: dropout, dense, tanh, dropout, projection.

    Args:
        embed_dim: width D of the encoder.
        inner_dim: width of the dense layer.
        num_classes: number of outputs.
        dropout: probability of dropout before each of the two linear layers, in [0, 1).
    """

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(embed_dim, inner_dim)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inner_dim, num_classes)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits <float>[B, num_classes] of states <float>[B, S, D]."""
        pooled = torch.tanh(self.dense(self.dropout(states[:, 0])))
        return self.out_proj(self.dropout(pooled))


class ModernClassificationHead(ClassificationHead):
    """Sentence head of ModernBERT on the first token: dense without bias, GELU, LayerNorm, dropout, projection."""

    def __init__(self, embed_dim: int, inner_dim: int, num_classes: int, dropout: float, layer_norm_eps: float) -> None:
        super().__init__(embed_dim, inner_dim, num_classes, dropout)
        self.dense = nn.Linear(embed_dim, inner_dim, bias=False)
        self.layer_norm = LayerNorm(inner_dim, eps=layer_norm_eps, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits <float>[B, num_classes] of states <float>[B, S, D]."""
        return self.out_proj(self.dropout(self.layer_norm(F.gelu(self.dense(states[:, 0])))))


class TokenHead(nn.Module):
    """Token head: dropout and a projection.

    Args:
        embed_dim: width D of the encoder.
        num_outputs: number of scores for each token: the number of tags, or 2 for the start and end of an answer.
        dropout: probability of dropout before the projection, in [0, 1).
    """

    def __init__(self, embed_dim: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(embed_dim, num_outputs)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits <float>[B, S, num_outputs] of states <float>[B, S, D]."""
        return self.out_proj(self.dropout(states))


class ModernTokenHead(TokenHead):
    """Token head of ModernBERT: dense without bias, GELU, LayerNorm, dropout, projection."""

    def __init__(self, embed_dim: int, num_outputs: int, dropout: float, layer_norm_eps: float) -> None:
        super().__init__(embed_dim, num_outputs, dropout)
        # Stored as "transform.dense": in a checkpoint, "dense" identifies a sentence head.
        self.transform = nn.ModuleDict(
            {
                "dense": nn.Linear(embed_dim, embed_dim, bias=False),
                "layer_norm": LayerNorm(embed_dim, eps=layer_norm_eps, bias=False),
            }
        )

    def forward(self, states: Tensor) -> Tensor:
        """Return logits <float>[B, S, num_outputs] of states <float>[B, S, D]."""
        return super().forward(self.transform["layer_norm"](F.gelu(self.transform["dense"](states))))
