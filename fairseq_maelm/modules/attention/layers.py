"""Multi-head attention with an additive bias or rotary positions: the layers around a backend."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.local import attend_local
from fairseq_maelm.modules.attention.packed_qkv import split_packed
from fairseq_maelm.modules.attention.rotary import rotate
from fairseq_maelm.modules.attention.streams import TwoStreams, join
from fairseq_maelm.modules.autocast import LAYER_NORM_EPS, LayerNorm
from fairseq_maelm.modules.output_positions import OutputPositions


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The sizes and settings of a layer.

    Attributes:
        embed_dim: width D of the states.
        ffn_embed_dim: width of the feed-forward network.
        attention_heads: number of heads H; it divides D.
        dropout: probability of dropout on the outputs of sub-layers, in [0, 1).
        attention_dropout: probability of dropout on attention weights, in [0, 1).
        attention_backend: one of ``BACKENDS``.
        layer_norm_eps: epsilon of LayerNorm.
        modern: True for ModernBERT's layer, False for the paper's.
        rotary_bases: () without rotary positions; (base,) for all layers; or (base of global layers, base of local
            layers).
        local_attention: window in tokens of local layers; None if all layers are global.
        global_every: layers with index 0, n, 2 n, ... are global, where n is this number.
    """

    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_backend: str = "auto"
    layer_norm_eps: float = LAYER_NORM_EPS
    modern: bool = False
    rotary_bases: tuple[int, ...] = ()
    local_attention: int | None = None
    global_every: int = 3

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

    def layer_norm(self) -> LayerNorm:
        """Return a new LayerNorm over the layer's states."""
        return LayerNorm(self.embed_dim, eps=self.layer_norm_eps, bias=not self.modern)


class MultiHeadAttention(nn.Module):
    """The base class of self-attention and cross-attention; subclasses compute queries, keys and values."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.attention_heads, config.attention_dropout
        self.rotary_base, self.window = config.rotary_base(number), config.window(number)
        self.backend = BACKENDS[config.attention_backend]

    def split(self, packed: Tensor, bias: AttentionBias | None, values: int = 1) -> tuple[Tensor, ...]:
        """Split the joint result of a layer's projections, and rotate all but the values; see ``split_packed``."""
        if self.rotary_base is None:
            return split_packed(packed)
        assert bias is not None, "rotary attention needs positions"
        return split_packed(packed, bias.rotations[self.rotary_base], values)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, output_at: OutputPositions | None
    ) -> Tensor:
        """Attend from states <float>[B, Q, D] or <float>[M, D] to keys <float>[B, H, S, d_h], and join the heads."""
        query = query.unflatten(-1, (self.num_heads, -1))
        if self.rotary_base is not None:
            assert bias is not None, "rotary attention needs positions"
            query = rotate(query, bias.query_rotations[self.rotary_base])
        return self._attend_from_heads(query, key, value, bias, output_at, self.window)

    def _attend_from_heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: AttentionBias | None,
        output_at: OutputPositions | None,
        window: int | None,
    ) -> Tensor:
        """Attend from rotated queries <float>[B, Q, H, d_h], or <float>[M, H, d_h] with ``output_at``."""
        if output_at is not None:
            batch, _, length, _ = key.shape
            # Local attention in blocks needs a query for each token.
            query = output_at.pad(query, batch) if window is None else output_at.place(query, batch, length)
        joined = self._attend_heads(query.transpose(1, 2), key, value, bias, window).flatten(2)
        if output_at is None:
            return joined
        return output_at.unpad(joined) if window is None else output_at.take(joined)

    def _attend_heads(
        self, query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, window: int | None
    ) -> Tensor:
        """Attend from <float>[B, H, Q, d_h] within a window; return <float>[B, Q, H, d_h]."""
        dropout = self.dropout if self.training else 0.0
        if window is None:
            attended = self.backend.attend(query, key, value, bias, dropout)
        else:
            assert bias is not None, "local attention needs positions"
            method = self.backend.local(query, bias, dropout)
            attended = attend_local(self.backend.attend, query, key, value, bias, window, dropout, method)
        return attended.transpose(1, 2)


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention over the sequences of a batch."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__(config, number)
        # One matrix product computes queries, keys and values; its rows are in this order.
        self.qkv_proj = nn.Linear(config.embed_dim, 3 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(
        self,
        states: Tensor,
        bias: AttentionBias | TwoStreams | None,
        output_at: OutputPositions | TwoStreams | None = None,
    ) -> Tensor:
        """Attend within <float>[B, S, D]; return <float>[B, S, D], or with ``output_at`` <float>[M, D].

        With ``TwoStreams``, the states are <float>[B * S + M, D].
        """
        if isinstance(bias, TwoStreams):
            return self.out_proj(self._attend_streams(states, bias, output_at is not None))
        assert not isinstance(output_at, TwoStreams)
        if output_at is not None:
            return self.out_proj(self._attend_from(states, bias, output_at))
        qkv = self.qkv_proj(states).unflatten(-1, (3, self.num_heads, -1))
        if self.rotary_base is None and self.window is None:
            attended = self.backend.attend_qkv(qkv, bias, self.dropout if self.training else 0.0)
        else:
            query, key, value = self.split(qkv, bias)
            attended = self._attend_heads(query, key, value, bias, self.window)
        return self.out_proj(attended.flatten(2))

    def _attend_from(self, states: Tensor, bias: AttentionBias | None, output_at: OutputPositions) -> Tensor:
        """Attend from the output positions to all positions; return the result before the output projection."""
        query_projection, kv_projection = self._projections(states)
        queries = F.linear(output_at.take(states), *query_projection)
        packed = F.linear(states, *kv_projection).unflatten(-1, (2, self.num_heads, -1))
        key, value = self.split(packed, bias)
        return self.attend(queries, key, value, bias, output_at)

    def _attend_streams(self, rows: Tensor, streams: TwoStreams, masks_alone: bool) -> Tensor:
        """Attend from both streams or from the masks alone; return the result before the output projection."""
        query_projection, kv_projection = self._projections(rows)
        weights = kv_projection if masks_alone else (self.qkv_proj.weight, self.qkv_proj.bias)
        packed = F.linear(rows, *weights).unflatten(-1, (2 if masks_alone else 3, self.num_heads, -1))
        visible, masks, read = streams.split_packed(packed, self.rotary_base)
        if masks_alone:
            queries = F.linear(streams.take(rows), *query_projection).unflatten(-1, (self.num_heads, -1))
            if self.rotary_base is not None:
                queries = rotate(queries, streams.rotation_of_masks(self.rotary_base))
        else:
            queries = masks[0]
        if self.window is None or streams.reads_whole(self.window):
            gather, bias, window = streams.read_by_masks, streams.bias_of_masks(self.window), None
        else:
            gather, bias, window = streams.at_their_slots, streams.full_bias, self.window
        key, value = map(gather, read, masks[-2:])
        attended = self._attend_from_heads(queries, key, value, bias, streams.masks_at, window)
        if masks_alone:
            return attended
        query, own_key, own_value = visible
        of_visible = self._attend_heads(query, own_key, own_value, streams.bias, self.window)
        return join(of_visible.flatten(2), attended)

    def _projections(self, states: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of the queries, and those of the keys and values."""
        sizes = [states.shape[-1], 2 * states.shape[-1]]
        biases = (None, None) if self.qkv_proj.bias is None else self.qkv_proj.bias.split(sizes)
        return list(zip(self.qkv_proj.weight.split(sizes), biases))
