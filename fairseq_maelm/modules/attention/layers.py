"""Multi-head attention around a backend: plain self-attention first, then its two faster arrangements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention import streams
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.context import AttentionContext, MaskStream
from fairseq_maelm.modules.attention.local import attend_local
from fairseq_maelm.modules.attention.rotary import rotate
from fairseq_maelm.modules.attention.streams import split_packed
from fairseq_maelm.modules.autocast import LAYER_NORM_EPS, LayerNorm
from fairseq_maelm.modules.output_positions import OutputPositions


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The sizes and settings of a layer; both probabilities of dropout are in [0, 1)."""

    embed_dim: int  # width D of the states
    ffn_embed_dim: int  # width of the feed-forward network
    attention_heads: int  # number of heads H; it divides D
    dropout: float = 0.0  # on the outputs of sub-layers
    attention_dropout: float = 0.0  # on attention weights
    attention_backend: str = "auto"  # one of ``BACKENDS``
    layer_norm_eps: float = LAYER_NORM_EPS
    modern: bool = False  # ModernBERT's layer instead of the paper's
    rotary_bases: tuple[int, ...] = ()  # (), (base of all layers,), or (of global, of local layers)
    local_attention: int | None = None  # window in tokens of local layers; None: all are global
    global_every: int = 3  # layers with index 0, n, 2 n, ... are global

    @property
    def head_dim(self) -> int:
        """The width d_h of a head."""
        return self.embed_dim // self.attention_heads

    def rotary_base(self, number: int) -> int | None:
        """Return the rotary base of the layer with this index in the stack."""
        return self.rotary_bases[0 if self._is_global(number) else -1] if self.rotary_bases else None

    def window(self, number: int) -> int | None:
        """Return the window of the layer with this index in the stack; None if it reads all tokens."""
        return None if self._is_global(number) else self.local_attention

    def _is_global(self, number: int) -> bool:
        return number % self.global_every == 0

    def layer_norm(self, of_embeddings: bool = False) -> LayerNorm:
        """Return a new LayerNorm over the layer's states, or over the embeddings that begin the residual sum."""
        returns_single = of_embeddings and self.modern
        return LayerNorm(self.embed_dim, self.layer_norm_eps, not self.modern, returns_single)


class MultiHeadAttention(nn.Module):
    """The base class of self-attention and cross-attention; subclasses compute queries, keys and values."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.attention_heads, config.attention_dropout
        self.rotary_base, self.window = config.rotary_base(number), config.window(number)
        self.backend = BACKENDS[config.attention_backend]

    def split(self, packed: Tensor, context: AttentionContext, values: int = 1) -> tuple[Tensor, ...]:
        """Split the joint result of a layer's projections, and rotate all but the values; see ``split_packed``."""
        rotation = None if self.rotary_base is None else context.keys.rotations[self.rotary_base]
        return split_packed(packed, rotation, values)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
        """Attend from <float>[B, Q, D], or <float>[M, D] outputs, to <float>[B, H, S, d_h], and join the heads."""
        query = query.unflatten(-1, (self.num_heads, -1))
        if self.rotary_base is not None:
            query = rotate(query, context.queries.rotations[self.rotary_base])
        return self.attend_from_heads(query, key, value, context, self.window)

    def attend_from_heads(
        self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, window: int | None
    ) -> Tensor:
        """Attend from rotated queries <float>[B, Q, H, d_h], or <float>[M, H, d_h] outputs."""
        outputs = context.outputs
        if outputs is None:
            return self._attend_heads(query.transpose(1, 2), key, value, context, window).flatten(2)
        batch, _, length, _ = key.shape
        # Local attention in blocks needs a query for each token.
        query = outputs.pad(query, batch) if window is None else outputs.place(query, batch, length)
        joined = self._attend_heads(query.transpose(1, 2), key, value, context, window).flatten(2)
        return outputs.unpad(joined) if window is None else outputs.take(joined)

    def _attend_heads(
        self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, window: int | None
    ) -> Tensor:
        """Attend from <float>[B, H, Q, d_h] within a window; return <float>[B, Q, H, d_h]."""
        dropout = self.dropout if self.training else 0.0
        if window is None:
            attended = self.backend.attend(query, key, value, context, dropout)
        else:
            method = self.backend.local(query, context, dropout)
            attended = attend_local(self.backend.attend, query, key, value, context, window, dropout, method)
        return attended.transpose(1, 2)


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention over the sequences of a batch."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__(config, number)
        # One matrix product computes queries, keys and values; its rows are in this order.
        self.qkv_proj = nn.Linear(config.embed_dim, 3 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(self, states: Tensor, context: AttentionContext) -> Tensor:
        """Attend within <float>[B, S, D]; return <float>[B, S, D].

        If only some positions read, the result is <float>[M, D]. With a stream of masks, the states are the stream rows
        <float>[B * S + M, D], and so is the result, or that of the masks alone <float>[M, D].
        """
        if context.mask_stream is not None:
            attended = self._attend_two_streams(states, context, context.mask_stream)
        elif context.outputs is not None:
            attended = self._attend_from_outputs(states, context, context.outputs)
        else:
            attended = self._attend_from_all(states, context)
        return self.out_proj(attended)

    def _attend_from_all(self, states: Tensor, context: AttentionContext) -> Tensor:
        """Let every position read: plain self-attention without the output projection."""
        qkv = self.qkv_proj(states).unflatten(-1, (3, self.num_heads, -1))
        if self.rotary_base is None and self.window is None:
            return self.backend.attend_qkv(qkv, context, self.dropout if self.training else 0.0).flatten(2)
        query, key, value = self.split(qkv, context)
        return self._attend_heads(query, key, value, context, self.window).flatten(2)

    def _attend_from_outputs(self, states: Tensor, context: AttentionContext, outputs: OutputPositions) -> Tensor:
        """Let only the output positions read; there are no queries elsewhere."""
        query_projection, kv_projection = self._projections(states)
        queries = F.linear(outputs.take(states), *query_projection)
        packed = F.linear(states, *kv_projection).unflatten(-1, (2, self.num_heads, -1))
        key, value = self.split(packed, context)
        return self.attend(queries, key, value, context)

    def _attend_two_streams(self, rows: Tensor, context: AttentionContext, masks: MaskStream) -> Tensor:
        """Let visible tokens read visible tokens, and masks read both; or only the masks, if they are ``alone``."""
        if masks.alone:
            return self._attend_from_masks_alone(rows, context, masks)
        packed = self.qkv_proj(rows).unflatten(-1, (3, self.num_heads, -1))
        parts = streams.split_streams(packed, context, masks, self.rotary_base)
        attended = self._read_both(parts.masks[0], parts, masks)
        query, key, value = parts.visible
        return streams.join(self._attend_heads(query, key, value, context, self.window).flatten(2), attended)

    def _attend_from_masks_alone(self, rows: Tensor, context: AttentionContext, masks: MaskStream) -> Tensor:
        """Let the masks read both streams; there are no queries of visible tokens. Return <float>[M, D]."""
        query_projection, kv_projection = self._projections(rows)
        queries = F.linear(context.take_outputs(rows), *query_projection).unflatten(-1, (self.num_heads, -1))
        if self.rotary_base is not None:
            queries = rotate(queries, masks.context.queries.rotations[self.rotary_base])
        packed = F.linear(rows, *kv_projection).unflatten(-1, (2, self.num_heads, -1))
        return self._read_both(queries, streams.split_streams(packed, context, masks, self.rotary_base), masks)

    def _read_both(self, queries: Tensor, parts: streams.Parts, masks: MaskStream) -> Tensor:
        """Let the masks' queries <float>[M, H, d_h] read visible tokens and masks; return <float>[M, D]."""
        key, value = (
            streams.keys_of_masks(visible, own, masks, self.window)
            for visible, own in zip(parts.read, parts.masks[-2:])
        )
        return self.attend_from_heads(queries, key, value, *streams.context_of_masks(masks, self.window))

    def _projections(self, states: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of the queries, and those of the keys and values."""
        sizes = [states.shape[-1], 2 * states.shape[-1]]
        biases = (None, None) if self.qkv_proj.bias is None else self.qkv_proj.bias.split(sizes)
        return list(zip(self.qkv_proj.weight.split(sizes), biases))


class Memory(NamedTuple):
    """What the cross-attention of a layer reads: keys and values <float>[B, H, S, d_h], and who reads whom."""

    key: Tensor
    value: Tensor
    context: AttentionContext


class CrossAttention(MultiHeadAttention):
    """Multi-head attention to keys and values that ``keys_and_values`` computes for all layers at once."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__(config, number)
        self.q_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)
        # The rows of the keys come first, then those of the values.
        self.kv_proj = nn.Linear(config.embed_dim, 2 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(self, states: Tensor, memory: Memory) -> Tensor:
        """Attend from states <float>[B, T, D], or <float>[M, D] outputs; return a tensor of the same shape."""
        return self.out_proj(self.attend(self.q_proj(states), *memory))


def memories(layers: Sequence[CrossAttention], states: Tensor, context: AttentionContext) -> list[Memory]:
    """Compute what each layer reads of ``states`` <float>[B, S, D] in one matrix product.

    This is faster than a product for each layer, and its backward pass sums the gradient of ``states`` over layers.
    """
    first = layers[0]
    weight = _joined([layer.kv_proj.weight for layer in layers])
    offset = None if first.kv_proj.bias is None else _joined([layer.kv_proj.bias for layer in layers])
    packed = F.linear(states, weight, offset).unflatten(-1, (2 * len(layers), first.num_heads, -1))
    parts = first.split(packed, context, values=len(layers))
    return [Memory(key, value, context) for key, value in zip(parts[: len(layers)], parts[len(layers) :])]


def _joined(parameters: list[Tensor]) -> Tensor:
    """Concatenate the rows of all layers' keys, then those of all layers' values."""
    return torch.stack([each.unflatten(0, (2, -1)) for each in parameters], dim=1).flatten(0, 2)
