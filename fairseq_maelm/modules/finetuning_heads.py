"""Sentence and token heads for fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.autocast import LAYER_NORM_EPS, LayerNorm

# What a sentence head reads -> the name of its dense layer, by which a checkpoint tells what its heads read.
POOLING = {"first": "dense", "mean": "mean_dense"}


def pool(states: Tensor, inside: Tensor, pooling: str) -> Tensor:
    """Return the "first" or the "mean" <float>[B, D] of states <float>[B, S, D]; ``inside`` <bool>[B, S] are tokens."""
    if pooling == "first":
        return states[:, 0]
    inside = inside[:, :, None]
    # States at padding are undefined, and need not be finite.
    return states.masked_fill(~inside, 0.0).sum(dim=1) / inside.sum(dim=1)


class ClassificationHead(nn.Module):
    """Sentence head of fairseq's RoBERTa: dropout, dense (with or without ``bias``), tanh, dropout, projection.

    With ``pooling`` it reads the state of the "first" token, or the "mean" of all tokens' states.
    """

    def __init__(
        self,
        embed_dim: int,
        inner_dim: int,
        num_classes: int,
        dropout: float,
        pooling: str = "first",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.add_module(POOLING[pooling], nn.Linear(embed_dim, inner_dim, bias=bias))
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inner_dim, num_classes)

    @property
    def dense_layer(self) -> nn.Linear:
        """The dense layer."""
        layer = self.get_submodule(POOLING[self.pooling])
        assert isinstance(layer, nn.Linear)
        return layer

    def transform(self, pooled: Tensor) -> Tensor:
        """Return what the projection reads, <float>[B, inner_dim], of pooled states <float>[B, D]."""
        return self.dropout(torch.tanh(self.dense_layer(self.dropout(pooled))))

    def forward(self, pooled: Tensor) -> Tensor:
        """Return logits <float>[B, num_classes] of pooled states <float>[B, D]."""
        return self.out_proj(self.transform(pooled))


class ModernClassificationHead(ClassificationHead):
    """Sentence head of ModernBERT: dense without bias, GELU, LayerNorm, dropout, projection."""

    def __init__(
        self,
        embed_dim: int,
        inner_dim: int,
        num_classes: int,
        dropout: float,
        pooling: str = "first",
        layer_norm_eps: float = LAYER_NORM_EPS,
    ) -> None:
        super().__init__(embed_dim, inner_dim, num_classes, dropout, pooling, bias=False)
        self.layer_norm = LayerNorm(inner_dim, eps=layer_norm_eps, bias=False)

    def transform(self, pooled: Tensor) -> Tensor:
        """Return what the projection reads, <float>[B, inner_dim], of pooled states <float>[B, D]."""
        return self.dropout(self.layer_norm(F.gelu(self.dense_layer(pooled))))


class TokenHead(nn.Module):
    """Token head: dropout and a projection to the scores of tags, or to 2 for the start and end of an answer."""

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
