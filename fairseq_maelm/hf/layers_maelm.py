"""Layers and encoder of MAE-LM models for Hugging Face transformers, with MPNet's parameter names.

Shapes: B sequences, S tokens, D width, H heads.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetLayer

from .configuration_maelm import MaelmConfig, relative_bucket

# The row of the position table for the first position: RoBERTa and MPNet count from the padding symbol, 1, plus 1.
OFFSET = 2


def hide(bias: Tensor | None, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Set a bias <dtype>[B, H or 1, S or 1, S] to the minimum of ``dtype`` at keys where ``attention_mask`` is 0."""
    hidden = attention_mask[:, None, None] == 0
    if bias is None:
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    # With -inf, a sequence of padding alone would give NaN.
    return bias.masked_fill(hidden, torch.finfo(dtype).min)


class MaelmLayer(MPNetLayer):
    """MPNet's layer with torch's fused attention and gradient checkpointing."""

    # transformers sets the function that recomputes in all modules with this attribute.
    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Any]

    def forward(
        self, states: Tensor, bias: Tensor | None, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return states <float>[B, S, D] and attention weights <float>[B, H, S, S], which are None unless requested.

        ``bias`` broadcasts to [B, H, S, S] and is added to the attention logits.
        """
        if self.gradient_checkpointing and self.training:
            computed: tuple[Tensor, Tensor | None]
            computed = self._gradient_checkpointing_func(self._compute, states, bias, output_attentions)
            return computed
        return self._compute(states, bias, output_attentions)

    def _compute(self, states: Tensor, bias: Tensor | None, output_attentions: bool) -> tuple[Tensor, Tensor | None]:
        attention = self.attention.attn
        query, key, value = (
            project(states).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
            for project in (attention.q, attention.k, attention.v)
        )
        weights = None
        if output_attentions:
            logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            weights = (logits if bias is None else logits + bias).softmax(dim=-1)
            attended = attention.dropout(weights) @ value
        else:
            rate = attention.dropout.p if self.training else 0.0
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=rate)
        attended = self.attention.dropout(attention.o(attended.transpose(1, 2).flatten(2)))
        states = self.attention.LayerNorm(states + attended)
        return self.output(self.intermediate(states), states), weights


class MaelmEncoder(nn.Module):
    """A stack of layers that share one table of relative position biases."""

    def __init__(self, config: MaelmConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(MaelmLayer(config) for _ in range(config.num_hidden_layers))
        self.positions = config.max_position_embeddings - OFFSET
        self.relative_attention_bias: nn.Embedding | None = None
        if config.relative_attention_buckets != "none":
            numbers = config.relative_attention_num_buckets, config.relative_attention_max_distance
            self.relative_attention_bias = nn.Embedding(numbers[0], config.num_attention_heads)
            # A list, because half precision would move distances between buckets, and because transformers does not
            # restore buffers that are not in a checkpoint.
            self.bucket_of_distance = [
                relative_bucket(config.relative_attention_buckets, distance, *numbers)
                for distance in range(1 - self.positions, self.positions)
            ]

    def check_length(self, length: int) -> None:
        """Raise ValueError if sequences are longer than the position table."""
        # While the model is traced, a length may be symbolic.
        if not torch.compiler.is_compiling() and length > self.positions:
            raise ValueError(f"{length} tokens are more than the model's {self.positions} positions: truncate texts")

    def position_bias(self, positions: Tensor) -> Tensor | None:
        """Return the bias <float>[B or 1, H, S, S] for positions <int64>[B or 1, S]; None if the model has none."""
        if self.relative_attention_bias is None:
            return None
        of_distance = self.relative_attention_bias(torch.tensor(self.bucket_of_distance, device=positions.device))
        index = positions[:, None, :] - positions[:, :, None] + self.positions - 1
        return of_distance.t().index_select(1, index.flatten()).unflatten(1, index.shape).transpose(0, 1)

    def forward(self, states: Tensor, bias: Tensor | None, output_attentions: bool) -> tuple[list, list]:
        """Return the states <float>[B, S, D] before and after each layer, and the layers' attention weights or None."""
        all_states, all_weights = [states], []
        for layer in self.layer:
            states, weights = layer(states, bias, output_attentions)
            all_states.append(states)
            all_weights.append(weights)
        return all_states, all_weights
