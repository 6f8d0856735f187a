"""Prediction heads: masked tokens in pretraining, classes in fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaskedTokenHead(nn.Module):
    """Dense, GELU, LayerNorm, then the product with the encoder's token embeddings, which are tied, plus a bias."""

    def __init__(self, embed_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(embed_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Args:
            states: <float>[..., D].
            embedding: <float>[V, D] token embeddings.

        Returns:
            logits <float>[..., V].
        """
        return F.linear(self.layer_norm(F.gelu(self.dense(states))), embedding, self.bias)


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
