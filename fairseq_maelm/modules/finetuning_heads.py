"""Sentence and token heads for fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.autocast import LayerNorm


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
