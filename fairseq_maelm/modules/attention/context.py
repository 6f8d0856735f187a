"""What attention reads besides states: who reads whom, relative bias, rotary positions; and attention's plain formula.

Each forward pass makes one ``AttentionContext`` for all layers of a stack. It stores the small tensors that define the
bias of the logits. Backends that need the dense bias call ``dense``, which returns the same tensor in every layer.
"""

from collections.abc import Callable, Hashable
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.batch import padding_boundaries, padding_mask
from fairseq_maelm.modules.attention.relative_position import Attach, spread
from fairseq_maelm.modules.attention.rotary import Rotation
from fairseq_maelm.modules.output_positions import OutputPositions

_Made = TypeVar("_Made")

# A backend's function: queries, keys and values <float>[B, H, S, d_h], who reads whom, dropout -> [B, H, Q, d_h].
Attend = Callable[[Tensor, Tensor, Tensor, "AttentionContext", float], Tensor]


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, context: "AttentionContext", dropout: float = 0.0
) -> Tensor:
    """Compute scaled dot-product attention (section 2.1): softmax(Q K^T / sqrt(d_h) + bias) V.

    This is the reference for all backends.

    Args:
        query: <float>[B, H, Q, d_h].
        key: <float>[B, H, S, d_h]; Q = S in self-attention.
        value: <float>[B, H, S, d_h].
        context: who reads whom. Its rotations were already applied to queries and keys.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[B, H, Q, d_h]. Sequences whose keys are all hidden get zeros; results at padding are undefined.
    """
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    bias = context.dense(key)
    if bias is not None:
        logits = logits + bias
    return zero_where_blind(F.dropout(logits.softmax(dim=-1), dropout) @ value, key, context)


class Tokens(NamedTuple):
    """The tokens on one side of attention: those that read (queries), or those that are read (keys).

    A relative bias and a window need the original ``positions``: <int64>[B, S], or [1, S] if all sequences share them.
    Those of queries at outputs are [B, Q], or None where nothing needs them.
    """

    positions: Tensor | None = None
    rotations: dict[int, Rotation] = {}  # rotary base -> rotation; [M] rows for queries at outputs
    max_positions: int | None = None  # above all positions, for backends that make a table of distances


class Visibility(NamedTuple):
    """The keys that a query may read: all that nothing below hides."""

    lengths: Tensor | None = None  # <int64>[B] tokens; later keys are padding, as are queries in self-attention
    hidden: Tensor | None = None  # <bool>[B, S] True at keys that no query may read
    causal: bool = False  # query i reads only keys 0 to i
    window: int | None = None  # keys whose positions are more than window // 2 from the query's are hidden


_NO_TOKENS = Tokens()
_ALL_VISIBLE = Visibility()


class MaskStream(NamedTuple):
    """The masks of the shared decoder: a second stream beside the visible tokens, which never read it.

    A layer's input then has stream rows <float>[B * S + M, D]: those of the visible tokens, then one for each mask.
    """

    context: "AttentionContext"  # of the masks' queries; keys [B, S + Q]: a sequence's visible tokens, then its masks
    full_context: "AttentionContext"  # the same for a window in blocks; keys are all slots [B, T]
    rotations: dict[int, Rotation]  # rotary base -> rotation of all stream rows <float>[1, B * S + M]
    decoder_rows: Tensor  # <int64>[N] rows of the visible tokens that masks may read
    decoder_slots: Tensor  # <int64>[N] slots of these tokens
    alone: bool = False  # whether a layer computes the masks' outputs only


class AttentionContext:
    """Who reads whom in the layers of a stack, and the bias of the logits.

    A query without any visible key gets zeros. ``relative_bias`` <float>[H, 2P - 1] has a bias for each distance: the
    column is key position - query position + P - 1. ``queries`` are by default the keys. ``outputs`` are the positions
    of the queries, if not all positions read: a layer then returns their states alone.

    ``mask_stream`` has the shared decoder's masks, if the rest of the context is that of visible tokens beside them.
    ``boundaries`` <int32>[2 B + 1], see ``padding_boundaries``, are there if padding is all that makes sequences
    differ; backends may then compute the padding as separate sequences.
    """

    def __init__(
        self,
        keys: Tokens = _NO_TOKENS,
        visibility: Visibility = _ALL_VISIBLE,
        relative_bias: Tensor | None = None,
        queries: Tokens | None = None,
        outputs: OutputPositions | None = None,
    ) -> None:
        if keys.positions is None and (relative_bias is not None or visibility.window is not None):
            raise ValueError("a relative bias and a window need positions")
        self.keys, self.queries = keys, keys if queries is None else queries
        self.visibility, self.relative_bias = visibility, relative_bias
        self.outputs = outputs
        self.mask_stream: MaskStream | None = None
        lengths, hidden, causal, window = visibility
        more = relative_bias is not None or queries is not None or hidden is not None or causal or window is not None
        self.boundaries: Tensor | None = None
        if lengths is not None and keys.positions is not None and not more:
            self.boundaries = padding_boundaries(lengths, keys.positions.shape[1])
        self._made: dict[Hashable, Any] = {}

    def once(self, name: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return ``make()``, computed in the first layer that asks for ``name`` and stored for the others.

        In a compiled graph every layer computes it: a stored tensor would give the second layer another graph.
        """
        if torch.compiler.is_compiling():
            return make()
        if name not in self._made:
            self._made[name] = make()
        made: _Made = self._made[name]
        return made

    @property
    def reads_from_everywhere(self) -> bool:
        """True if the queries are at the positions of the keys, as in self-attention over whole sequences."""
        return self.queries is self.keys

    @property
    def needs_gradient(self) -> bool:
        """True if a backward pass will need the gradient of the relative bias."""
        return self.relative_bias is not None and self.relative_bias.requires_grad and torch.is_grad_enabled()

    @property
    def only_causal(self) -> bool:
        """True if nothing is added to the logits but what hides later keys."""
        lengths, hidden, causal, window = self.visibility
        return causal and self.relative_bias is None and lengths is None and hidden is None and window is None

    def at(self, outputs: OutputPositions, sequences: int) -> "AttentionContext":
        """Return the context in which only the positions ``outputs`` read; ``sequences`` is the batch size B."""
        positions = None
        if self.relative_bias is not None and self.keys.positions is not None:
            positions = outputs.pad(outputs.take(self.keys.positions.expand(sequences, -1)), sequences)
        rotations = {base: each.take(outputs, sequences) for base, each in self.queries.rotations.items()}
        return AttentionContext(self.keys, self.visibility, self.relative_bias, Tokens(positions, rotations), outputs)

    def with_mask_stream(self, mask_stream: MaskStream) -> "AttentionContext":
        """Return this context of visible tokens with a second stream; both keep what they compute in one place."""
        context = copy(self)
        context.mask_stream = mask_stream
        return context

    def take_outputs(self, states: Tensor) -> Tensor:
        """Select the states whose outputs a layer computes: all of them, <float>[M, D] outputs or masks."""
        if self.mask_stream is not None and self.mask_stream.alone:
            return states[self.sequences(states) * self.length :]
        return states if self.outputs is None else self.outputs.take(states)

    def sequences(self, states: Tensor) -> int:
        """Return the number B of sequences that are the input of a layer."""
        if self.mask_stream is None:
            return len(states)
        assert self.keys.positions is not None
        return len(self.keys.positions)

    @property
    def length(self) -> int:
        """The number S of keys."""
        assert self.keys.positions is not None
        return self.keys.positions.shape[1]

    def blind(self, length: int) -> Tensor | None:
        """Return <bool>[B, 1, 1, 1], True at sequences whose keys are all hidden, or None if there are none."""
        return self.once("blind", partial(self._blind, length))

    def _blind(self, length: int) -> Tensor | None:
        hidden = self._hidden_keys(length)
        if hidden is None:
            return None
        blind = hidden.all(dim=1)[:, None, None, None]
        # On a GPU, checking would synchronize; in a compiled graph, it would make two graphs.
        checks = blind.device.type == "cpu" and not torch.compiler.is_compiling()
        return None if checks and not blind.any() else blind

    def dense(self, key: Tensor) -> Tensor | None:
        """Return the differentiable dense bias for keys <float>[B, H, S, d_h], in the dtype of the keys.

        The shape is [B or 1, H or 1, Q or 1, S]; None if there is nothing to add. Later calls return the same tensor.
        Sequences whose keys are all hidden get no -inf, so that all results stay finite; see ``blind``.
        """
        return self.once(("dense", key.dtype, self.needs_gradient), partial(self._dense, key))

    def _dense(self, key: Tensor) -> Tensor | None:
        if torch.compiler.is_compiling():
            return self._values(key)
        dense = self.values(key)
        return Attach.apply(self.relative_bias, dense, self.index()) if self.needs_gradient else dense

    def index(self) -> Tensor:
        """Return the column of ``relative_bias`` for each pair of query and key: <int64>[B, Q, S]."""
        assert self.relative_bias is not None
        return self._distances() + self.relative_bias.shape[1] // 2

    def _distances(self) -> Tensor:
        keys, queries = self.keys.positions, self.queries.positions
        assert keys is not None and queries is not None
        return keys[:, None, :] - queries[:, :, None]

    def _hidden_keys(self, length: int) -> Tensor | None:
        lengths, hidden, *_ = self.visibility
        if lengths is None:
            return hidden
        padding = padding_mask(lengths, length)
        return padding if hidden is None else padding | hidden

    @torch.no_grad()
    def values(self, key: Tensor) -> Tensor | None:
        """Compute the values of ``dense`` without autograd, as a new tensor."""
        return self._values(key)

    def _values(self, key: Tensor) -> Tensor | None:
        bias = self.relative_bias
        relative = None if bias is None else spread(bias.to(key.dtype), self.index())
        length = key.shape[-2]
        keys = self._hidden_keys(length)
        hidden = None if keys is None else (keys & ~keys.all(dim=1, keepdim=True))[:, None, None, :]
        if self.visibility.causal:
            later = torch.ones(1, 1, length, length, dtype=torch.bool, device=key.device).triu(1)
            hidden = later if hidden is None else hidden | later
        if self.visibility.window is not None:
            far = self._distances().abs()[:, None] > self.visibility.window // 2
            hidden = far if hidden is None else hidden | far
        if hidden is None:
            return relative
        if relative is None:
            relative = torch.zeros(hidden.shape, dtype=key.dtype, device=key.device)
        if len(relative) < len(hidden):
            return relative.masked_fill(hidden, float("-inf"))
        return relative.masked_fill_(hidden, float("-inf"))


def zero_where_blind(output: Tensor, key: Tensor, context: AttentionContext) -> Tensor:
    """Zero the results <float>[B, H, Q, d_h] of sequences whose keys are all hidden."""
    blind = context.blind(key.shape[-2])
    return output if blind is None else output.masked_fill(blind, 0.0)
