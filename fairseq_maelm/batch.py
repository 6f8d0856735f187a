"""The contract between data and model: names, shapes and dtypes of a batch.

The letters of shapes in all docstrings and comments of this package:

    B  sequences in the batch            D  model width
    T  tokens of the full sequence       H  attention heads
    S  tokens in the encoder's input     L  encoder layers
    M  outputs: predicted tokens         V  vocabulary, fairseq's special symbols and <mask> included
    N  encoder states that enter the decoder

Sequences are padded on the right, full sequences to T and the encoder's input to S. Four kinds of indices have four
names:

    slot        in the full batch [B, T], flattened: ``sequence * T + position``
    row         in the encoder's batch [B, S], flattened: ``sequence * S + column``
    output      among the predicted tokens [M], spare outputs included
    stream row  among the rows of the shared decoder: all rows of the encoder's batch [B * S], then one for each output
                whose token the encoder does not see

Spare outputs have no target: they are slots that nobody asked for, added where a batch must have one of few shapes
(compiled models, CUDA graphs), so that M is the same in many batches.

The dataset decides what the encoder sees at masked positions and describes that to the model only by rows and slots, so
the model does not depend on the task's options.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class _Optional(TypedDict, total=False):
    full_tokens: Tensor  # <int64>[B, T] the full sequences, only for decoders that read them from left to right


class Layout(_Optional):
    """The positions of the encoder's tokens in the full sequences, and the positions to predict.

    It is a dictionary because fairseq moves batches between devices by walking through dictionaries.
    """

    positions: Tensor  # <int64>[B, S] original position of each token in the encoder's input, 0 at padding
    lengths: Tensor  # <int64>[B] number of tokens in each full sequence
    padded_length: int  # T
    visible_tokens: int  # tokens in the encoder's input of the whole batch, without padding
    decoder_rows: Tensor  # <int64>[N] rows of encoder states that enter the decoder
    decoder_slots: Tensor  # <int64>[N] slots of these states; all other slots get the mask embedding
    predicted_slots: Tensor  # <int64>[M] slots to predict, ascending; then other slots, as spare outputs
    predicted_tokens: int  # slots to predict in the whole batch, without spare outputs
    seen_outputs: Tensor  # <int64>[K] outputs whose token the encoder sees, ascending; their slots are decoder slots
    seen_rows: Tensor  # <int64>[K] rows of these outputs
    padded_outputs: Tensor  # <int64>[M] index of each output in a flattened [B, output_length]
    output_length: int  # largest number of slots to predict in a sequence; with spare outputs, M = B * output_length
    all_visible: bool  # whether the states of all tokens enter the decoder; rows then equal slots, and S = T
    encoder_padded: bool  # whether any encoder sequence is shorter than S; known without a GPU sync
    decoder_padded: bool  # whether any full sequence is shorter than T


def padding_mask(lengths: Tensor, length: int) -> Tensor:
    """Return <bool>[B, length], True at the padding of right-padded sequences with lengths <int64>[B]."""
    return torch.arange(length, device=lengths.device)[None, :] >= lengths[:, None]


def padding_boundaries(lengths: Tensor, length: int) -> Tensor:
    """Return <int32>[2 B + 1]: in a flattened [B, length], the starts of each row and its padding; then B * length."""
    starts = torch.arange(0, len(lengths) * length, length, device=lengths.device)
    ends = torch.stack([starts + lengths, starts + length], dim=1).flatten()
    return F.pad(ends, (1, 0)).int()


def round_up(lengths: np.ndarray) -> np.ndarray:
    """Round lengths <int>[...] up to one of eight in each octave: 16, 18, ..., 32, 36, ...; the first 16 stay.

    Rounded lengths are a twentieth longer on average.
    """
    step = 1 << np.maximum(np.frexp(lengths)[1] - 4, 0)
    return -(-lengths // step) * step


def pad_rows(rows: Sequence[np.ndarray], lengths: np.ndarray, filler: int, width: int | None = None) -> np.ndarray:
    """Stack sequences into <int64>[B, T], padded on the right with ``filler`` to the longest or to ``width``."""
    padded = np.full((len(rows), width or int(lengths.max())), filler, dtype=np.int64)
    for row, tokens in zip(padded, rows):
        row[: len(tokens)] = tokens
    return padded


def whole_sequences(
    rows: Sequence[np.ndarray], lengths: np.ndarray, filler: int, width: int | None = None
) -> dict[str, Any]:
    """Return a batch of B sequences that the encoder sees in full; the arguments are those of ``pad_rows``.

    The batch holds ``ntokens``, the number of tokens without padding, and ``net_input`` with ``src_tokens``
    <int64>[B, S] and ``src_lengths`` <int64>[B].
    """
    tokens = torch.from_numpy(pad_rows(rows, lengths, filler, width))
    return {
        "ntokens": int(lengths.sum()),
        "net_input": {"src_tokens": tokens, "src_lengths": torch.from_numpy(lengths)},
    }
