"""Layers, encoder, decoder and LM head of MAE-LM models for Hugging Face transformers, with MPNet's parameter names.

Shapes: B sequences, T tokens of a full sequence, S tokens that the encoder sees, D width, H heads, V vocabulary.
"""

import copy
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
    """Set a bias <dtype>[B, H or 1, S or 1, S] to the minimum of ``dtype`` where ``attention_mask`` is 0.

    The mask is [B, S] for keys, or [B, S, S] for queries and keys.
    """
    by_query = attention_mask if attention_mask.dim() == 3 else attention_mask[:, None]
    hidden = by_query[:, None] == 0
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
        depth, count = config.num_hidden_layers, config.decoder_layers
        self.layer = nn.ModuleList(MaelmLayer(config) for _ in range(depth))
        # Layers that predict masks, if the decoder shares the encoder's layers.
        self.with_masks = [math.ceil(number * depth / count) - 1 for number in range(1, count + 1)]
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

    def forward(
        self, states: Tensor, bias: Tensor | None, output_attentions: bool, masks: Tensor | None = None
    ) -> tuple[list, list]:
        """Return the states <float>[B, S, D] before and after each layer, and the layers' attention weights or None.

        ``masks`` <bool>[B, S] skip the layers that do not predict them.
        """
        all_states, all_weights = [states], []
        for number, layer in enumerate(self.layer):
            after, weights = layer(states, bias, output_attentions)
            if masks is None or number in self.with_masks:
                states = after
            else:
                states = torch.where(masks[..., None], states, after)
            all_states.append(states)
            all_weights.append(weights)
        return all_states, all_weights


class MaelmDecoder(nn.Module):
    """The shallow pretraining decoder: positions, LayerNorm, and layers without relative bias or dropout."""

    def __init__(self, config: MaelmConfig) -> None:
        super().__init__()
        shape = copy.deepcopy(config)
        shape.hidden_size, shape.intermediate_size = config.decoder_hidden_size, config.decoder_intermediate_size
        shape.num_attention_heads = config.decoder_attention_heads
        shape.hidden_dropout_prob = shape.attention_probs_dropout_prob = 0.0
        same_width = shape.hidden_size == config.hidden_size
        self.projection = None if same_width else nn.Linear(config.hidden_size, shape.hidden_size)
        self.position_embeddings: nn.Embedding | None = None
        if not config.share_decoder_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, shape.hidden_size)
        self.LayerNorm = nn.LayerNorm(shape.hidden_size, eps=config.layer_norm_eps)
        self.layer = nn.ModuleList(MaelmLayer(shape) for _ in range(config.decoder_layers))

    def forward(self, full: Tensor, position_ids: Tensor, shared: nn.Embedding, attention_mask: Tensor) -> Tensor:
        """Decode <float>[B, T, D] to <float>[B, T, decoder's width]; ``shared`` is the encoder's position table."""
        if self.projection is not None:
            full = self.projection(full)
        table = shared if self.position_embeddings is None else self.position_embeddings
        states = self.LayerNorm(full + table(position_ids))
        bias = hide(None, attention_mask, states.dtype)
        for layer in self.layer:
            states, _ = layer(states, bias)
        return states


class MaelmLMHead(nn.Module):
    """The LM head: a dense layer, GELU, LayerNorm, the product with the tied token embeddings, and a bias."""

    def __init__(self, config: MaelmConfig) -> None:
        super().__init__()
        width = config.decoder_hidden_size if config.decoder_layers else config.hidden_size
        self.dense = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.projection = None if width == config.hidden_size else nn.Linear(width, config.hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Return logits <float>[B, T, V] of states <float>[B, T, width] with token embeddings <float>[V, D]."""
        states = self.layer_norm(F.gelu(self.dense(states)))
        return F.linear(states if self.projection is None else self.projection(states), embedding, self.bias)

    def resize(self, vocabulary_size: int) -> None:
        """Truncate the bias to the vocabulary's new size, or extend it with zeros."""
        with torch.no_grad():
            bias = F.pad(self.bias, (0, vocabulary_size - len(self.bias)))
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
