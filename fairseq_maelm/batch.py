"""The contract between data and model.

One alphabet of shapes holds in all docstrings and comments of this package:

    B  sequences in the batch            D  model width
    T  tokens of the full sequence       H  attention heads
    S  tokens that the encoder sees      L  encoder layers
    M  predicted tokens in the batch     V  vocabulary, fairseq's special symbols and <mask> included
    N  encoder states that enter the decoder

Sequences are padded on the right, the full ones to T and the encoder's to S. A *slot* is a place in the flattened
full batch, ``sequence * T + position``; a *row* is a place in the flattened encoder batch, ``sequence * S + column``.
The data decide what the encoder sees at masked positions and say it by rows and slots alone: the model reads no option
of the task.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class _Optional(TypedDict, total=False):
    full_tokens: Tensor  # <int64>[B, T] the sequences themselves, only for decoders that read them from left to right


class Layout(_Optional):
    """Where the encoder's tokens stand in the full sequences, and which positions are predicted.

    A dictionary and not a class, because fairseq moves batches between devices by walking through dictionaries.
    """

    positions: Tensor  # <int64>[B, S] original position of each token that the encoder sees, 0 at padding
    full_lengths: Tensor  # <int64>[B] tokens of each full sequence
    full_length: int  # T
    visible_tokens: int  # tokens that the encoder sees in the whole batch, padding not counted
    visible_rows: Tensor  # <int64>[N] rows of encoder states that enter the decoder
    visible_slots: Tensor  # <int64>[N] the slot of each; all other slots hold the mask embedding
    masked_slots: Tensor  # <int64>[M] slots to predict, ascending
    wanted_rows: Tensor  # <int64>[M] place of each in a flattened [B, wanted_length] with a row for each sequence
    wanted_length: int  # the most slots to predict in one sequence
    all_visible: bool  # whether all tokens' states enter the decoder: rows are then slots, and S is T
    encoder_padded: bool  # whether any encoder sequence is shorter than S; known here without asking the device
    decoder_padded: bool  # whether any full sequence is shorter than T


def padding_mask(lengths: Tensor, length: int) -> Tensor:
    """Return <bool>[B, length], True at the padding of right-padded sequences of <int64>[B] tokens."""
    return torch.arange(length, device=lengths.device)[None, :] >= lengths[:, None]


def padding_boundaries(lengths: Tensor, length: int) -> Tensor:
    """Return <int32>[2 B + 1] slots in a flattened [B, length] where tokens and padding begin in turn, and the end."""
    starts = torch.arange(0, len(lengths) * length, length, device=lengths.device)
    ends = torch.stack([starts + lengths, starts + length], dim=1).flatten()
    return F.pad(ends, (1, 0)).int()


def pad_rows(rows: Sequence[np.ndarray], lengths: np.ndarray, filler: int) -> np.ndarray:
    """Stack sequences into <int64>[B, T], padded on the right with ``filler``."""
    padded = np.full((len(rows), int(lengths.max())), filler, dtype=np.int64)
    for row, tokens in zip(padded, rows):
        row[: len(tokens)] = tokens
    return padded
