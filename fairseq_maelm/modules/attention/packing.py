"""Packed sequences: one behind another, without the padding between them.

Fine-tuning sees sentences of very different lengths side by side: on GLUE's short tasks half of a padded batch is
padding. On a CPU everything but attention works on single tokens anyway, and attention goes from sequence to sequence.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

# Below this share of padding, and below so many tokens of it a sequence, taking it out costs as much as it saves:
# attention has some operations more for each sequence.
_WORTHWHILE_SHARE = 0.05
_WORTHWHILE_TOKENS = 4


class Packing(NamedTuple):
    """Where the tokens of padded sequences stand when the padding is left out.

    Attributes:
        slots: <int64>[N] place of each token in the flattened [B, S], ascending.
        lengths: the number of tokens of each sequence, all of them at least 1.
        shape: B and S.
    """

    slots: Tensor
    lengths: Tuple[int, ...]
    shape: Tuple[int, int]

    def pack(self, padded: Tensor) -> Tensor:
        """<any>[B, S, ...] to [N, ...]."""
        return padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1).index_select(0, self.slots)

    def pad(self, packed: Tensor) -> Tensor:
        """The inverse of ``pack``, with zeros at padding."""
        batch, length = self.shape
        return (
            packed.new_zeros(batch * length, *packed.shape[1:])
            .index_copy(0, self.slots, packed)
            .unflatten(0, self.shape)
        )

    @property
    def first(self) -> Tensor:
        """<int64>[B] the places of the sequences' first tokens."""
        lengths = torch.tensor(self.lengths)
        return lengths.cumsum(0) - lengths


def can_leave_padding_out(backend: str) -> bool:
    """Whether attention may be computed in rows on a CPU: a path that is asked for by name is kept."""
    return backend in ("auto", "cpu")


def packing_of(padding: Tensor) -> Optional[Packing]:
    """The packing of right-padded sequences, or None where it is better to compute on padding as well.

    Args:
        padding: <bool>[B, S], True at padding.
    """
    if padding.device.type != "cpu":
        return None
    lengths = padding.shape[1] - padding.sum(dim=1)
    least = max(_WORTHWHILE_SHARE * padding.shape[1], _WORTHWHILE_TOKENS) * len(padding)
    if padding.numel() - int(lengths.sum()) < least or int(lengths.min()) == 0:
        return None
    slots = (~padding).flatten().nonzero().squeeze(1)
    return Packing(slots, tuple(lengths.tolist()), (padding.shape[0], padding.shape[1]))
