"""The inputs of attention other than states: a learned relative bias, rotary positions, and hidden keys.

Each forward pass makes one ``AttentionBias`` for all layers of a stack. It stores the small tensors that define the
bias. Backends that need the dense bias call ``dense``, which returns the same tensor in every layer.
"""

from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.batch import padding_boundaries, padding_mask
from fairseq_maelm.modules.attention.bias_gradient import Attach, spread
from fairseq_maelm.modules.attention.rotary import Rotation
from fairseq_maelm.modules.output_positions import OutputPositions


class AttentionBias:
    """The attention bias, and the rotations for queries and keys, shared by all layers in a stack.

    Every argument is optional. A query whose keys are all hidden gets zeros as its result.

    Args:
        of_distance: <float>[H, 2P - 1] bias of each distance; the column is key position - query position + P - 1.
        positions: <int64>[B, S] positions of the keys, required by ``of_distance``; B may be 1 if all sequences share
            them.
        lengths: <int64>[B] number of tokens in each sequence. Later keys are padding, as are queries in self-attention.
        hidden: <bool>[B, S] True at keys that no query may read.
        causal: let query i read only keys 0 to i.
        query_positions: <int64>[B, Q] positions of the queries; None if they equal ``positions``.
        rotations: rotary base -> rotation of the keys.
        query_rotations: rotary base -> rotation of the queries; None if they equal ``rotations``.
        padded_to: S; allows backends to compute the padding as separate sequences.
        window: hide keys whose positions are more than window // 2 from the query's; needs ``positions``.
        max_positions: upper bound of positions, exclusive, for backends that make a table of distances.

    Attributes:
        boundaries: see ``padding_boundaries``; None without ``padded_to``.
        kept: results that a backend computes in one layer and reuses in the others.
    """

    def __init__(
        self,
        of_distance: Tensor | None = None,
        positions: Tensor | None = None,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
        causal: bool = False,
        query_positions: Tensor | None = None,
        rotations: dict[int, Rotation] | None = None,
        query_rotations: dict[int, Rotation] | None = None,
        padded_to: int | None = None,
        window: int | None = None,
        max_positions: int | None = None,
    ) -> None:
        if positions is None and (of_distance is not None or window is not None):
            raise ValueError("of_distance and window need positions")
        self.of_distance = of_distance
        self.positions = positions
        self.lengths = lengths
        self.hidden = hidden
        self.causal = causal
        self.query_positions = query_positions
        self.rotations = rotations or {}
        self.window, self.max_positions = window, max_positions
        self.query_rotations = self.rotations if query_rotations is None else query_rotations
        self.boundaries: Tensor | None = None
        if padded_to is not None and lengths is not None:
            self.boundaries = padding_boundaries(lengths, padded_to)
        self._dense: dict[tuple[torch.dtype, bool], Tensor | None] = {}
        self.kept: dict[Any, Any] = {}
        self._blind: Tensor | None = None

    @property
    def needs_gradient(self) -> bool:
        """True if a backward pass will need the gradient of the bias."""
        return self.of_distance is not None and self.of_distance.requires_grad and torch.is_grad_enabled()

    def read_from(self, output_at: OutputPositions, sequences: int) -> "AttentionBias":
        """Return the bias for the queries at ``output_at`` only; ``sequences`` is the batch size B."""
        query_positions = None
        if self.of_distance is not None and self.positions is not None:
            rows = output_at.take(self.positions.expand(sequences, -1))
            query_positions = output_at.pad(rows, sequences)
        return AttentionBias(
            of_distance=self.of_distance,
            positions=self.positions,
            lengths=self.lengths,
            hidden=self.hidden,
            causal=self.causal,
            query_positions=query_positions,
            rotations=self.rotations,
            query_rotations={base: each.take(output_at, sequences) for base, each in self.query_rotations.items()},
        )

    def blind(self, length: int) -> Tensor | None:
        """Return <bool>[B, 1, 1, 1], True at sequences whose keys are all hidden, or None if there are none."""
        blind = self._blind
        if blind is None:
            hidden = self._hidden_keys(length)
            if hidden is None:
                return None
            blind = hidden.all(dim=1)[:, None, None, None]
        if torch.compiler.is_compiling():
            return blind
        self._blind = blind
        # Checking would synchronize with a GPU.
        return None if blind.device.type == "cpu" and not blind.any() else blind

    def dense(self, key: Tensor) -> Tensor | None:
        """Return the differentiable dense bias for keys <float>[B, H, S, d_h], in the dtype of the keys.

        The shape is [B or 1, H or 1, Q or 1, S]; None if there is nothing to add. Later calls return the same tensor.
        Sequences whose keys are all hidden get no -inf, so that all results stay finite; see ``blind``.
        """
        if (
            torch.compiler.is_compiling()
        ):  # a stored tensor would give the second layer a graph different from the first
            return self._values(key)
        kind = (key.dtype, self.needs_gradient)
        if kind not in self._dense:
            dense = self.values(key)
            if self.needs_gradient:
                dense = Attach.apply(self.of_distance, dense, self.index())
            self._dense[kind] = dense
        return self._dense[kind]

    def index(self) -> Tensor:
        """Return the column of ``of_distance`` for each pair of query and key: <int64>[B, Q, S]."""
        assert self.of_distance is not None
        return self._distances() + self.of_distance.shape[1] // 2

    def _distances(self) -> Tensor:
        assert self.positions is not None
        queries = self.positions if self.query_positions is None else self.query_positions
        return self.positions[:, None, :] - queries[:, :, None]

    def _hidden_keys(self, length: int) -> Tensor | None:
        if self.lengths is None:
            return self.hidden
        padding = padding_mask(self.lengths, length)
        return padding if self.hidden is None else padding | self.hidden

    @torch.no_grad()
    def values(self, key: Tensor) -> Tensor | None:
        """Compute the values of ``dense`` without autograd, as a new tensor."""
        return self._values(key)

    def _values(self, key: Tensor) -> Tensor | None:
        relative = None if self.of_distance is None else spread(self.of_distance.to(key.dtype), self.index())
        length = key.shape[-2]
        keys = self._hidden_keys(length)
        hidden = None if keys is None else (keys & ~keys.all(dim=1, keepdim=True))[:, None, None, :]
        if self.causal:
            later = torch.ones(1, 1, length, length, dtype=torch.bool, device=key.device).triu(1)
            hidden = later if hidden is None else hidden | later
        if self.window is not None:
            far = self._distances().abs()[:, None] > self.window // 2
            hidden = far if hidden is None else hidden | far
        if hidden is None:
            return relative
        if relative is None:
            relative = torch.zeros(hidden.shape, dtype=key.dtype, device=key.device)
        if len(relative) < len(hidden):
            return relative.masked_fill(hidden, float("-inf"))
        return relative.masked_fill_(hidden, float("-inf"))


def zero_where_blind(output: Tensor, key: Tensor, bias: AttentionBias | None) -> Tensor:
    """Zero the results <float>[B, H, Q, d_h] of sequences whose keys are all hidden."""
    blind = None if bias is None else bias.blind(key.shape[-2])
    return output if blind is None else output.masked_fill(blind, 0.0)
