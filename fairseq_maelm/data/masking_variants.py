"""The encoder's view of a masked sequence: its input, and the states that enter the decoder (Table 2 and Figure 4)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fairseq_maelm.batch import round_up
from fairseq_maelm.data.masking import MaskDraw

MASKED_INPUTS = ("dropped", "kept", "reset", "random", "random_kept")
ENCODER_POSITIONS = ("original", "consecutive")


class VisibleTokens(NamedTuple):
    """The tokens of a batch that the encoder sees."""

    tokens: np.ndarray  # <int64>[B, T] with masked positions replaced
    visible: np.ndarray  # <bool>[B, T] True where the encoder sees the token
    # <bool>[B, T] True where the state of a visible token enters the decoder; None if all of them do
    entering: np.ndarray | None = None


@dataclass(frozen=True)
class EncoderView:
    """Options for the encoder's input, as compared in the paper's Table 2.

    At masked positions, ``masked_input`` is "dropped": nothing (MAE-LM); "kept": <mask>, whose state enters the
    decoder; "reset": <mask>, but the decoder gets the mask embedding; "random": a random real token, and the decoder
    gets the mask embedding; or "random_kept": a random real token, whose state enters the decoder.
    """

    masked_input: str = "dropped"
    mask_fraction: float = 0.0  # the paper's delta in [0, 1]: probability that a "dropped" mask is "kept"
    positions: str = "original"  # "original", or "consecutive": the visible tokens are numbered without gaps

    def __post_init__(self) -> None:
        if self.mask_fraction and self.masked_input != "dropped":
            raise ValueError(
                "--encoder-mask-fraction keeps a fraction of the masks that --masked-input dropped would otherwise "
                f"remove: it cannot be combined with --masked-input {self.masked_input}"
            )

    @property
    def shows_random_tokens(self) -> bool:
        """True if the encoder sees random tokens at masked positions."""
        return self.masked_input in ("random", "random_kept")

    @property
    def hides_all_masks(self) -> bool:
        """True if masked positions may lack an encoder state to predict from, so that a decoder is needed."""
        return self.masked_input in ("dropped", "reset", "random") and self.mask_fraction < 1.0

    @property
    def sees_masks(self) -> bool:
        """True if the encoder sees <mask> when a model that was trained with this view predicts masked tokens.

        After training with random tokens, masks are dropped, since a random token cannot mark a position.
        """
        return self.masked_input in ("kept", "reset") or self.mask_fraction > 0.5

    def apply(
        self,
        draw: MaskDraw,
        inside: np.ndarray,
        mask_index: int,
        staying: np.ndarray | None = None,
        random_tokens: np.ndarray | None = None,
    ) -> VisibleTokens:
        """Return what the encoder sees of a batch with drawn masks, whose tokens are ``inside`` <bool>[B, T].

        ``staying`` <bool>[B, T] marks the masks that stay in the input; it is needed with a ``mask_fraction``.
        ``random_tokens`` <int64>[B, T] are needed if the encoder ``shows_random_tokens``.
        """
        masked = draw.masked
        unmasked = inside & ~masked
        if self.masked_input == "dropped":
            if staying is None:
                return VisibleTokens(draw.tokens, unmasked)
            kept = masked & staying
            return VisibleTokens(np.where(kept, mask_index, draw.tokens), unmasked | kept)
        filler = mask_index if random_tokens is None else random_tokens
        entering = None if self.masked_input in ("kept", "random_kept") else unmasked
        return VisibleTokens(np.where(masked, filler, draw.tokens), inside, entering)


def output_layout(predicted: np.ndarray, planned: int | None = None) -> dict[str, Any]:
    """Return the layout's entries on the positions to predict and spare outputs; arguments as in ``encoder_input``."""
    counts = np.count_nonzero(predicted, axis=1)
    length = _width(counts, planned, predicted.shape[1])
    slots, rows = np.flatnonzero(predicted), _rows(counts, length)
    if planned is not None:
        spare = ~predicted & (np.cumsum(~predicted, axis=1) <= length - counts[:, None])
        slots = np.append(slots, np.flatnonzero(spare))
        rows = np.append(rows, np.flatnonzero(np.arange(length) >= counts[:, None]))
    return {
        "predicted_slots": torch.from_numpy(slots),
        "predicted_tokens": int(counts.sum()),
        "padded_outputs": torch.from_numpy(rows),
        "output_length": length,
    }


def _width(counts: np.ndarray, planned: int | None, limit: int) -> int:
    """Return the length to which rows of ``counts`` <int64>[B] items are padded: if planned, one of few."""
    most = counts.max()
    if planned is None:
        return int(most)
    return planned if most <= planned else min(int(round_up(most)), limit)


def encoder_input(
    shown: VisibleTokens,
    predicted: np.ndarray,
    lengths: np.ndarray,
    pad: int,
    positions: str = "original",
    planned: int | None = None,
) -> dict[str, Any]:
    """Drop what the encoder does not see, in MAE-LM the masked tokens; record the positions of the rest.

    Args:
        shown: what the encoder sees.
        predicted: <bool>[B, T] True at positions to predict.
        lengths: <int64>[B] lengths of the full sequences.
        pad: token id of padding.
        positions: "original" or "consecutive".
        planned: number of masks in a sequence of T tokens. If it is given, padding and spare outputs, which have no
            target, make the batch one of few different shapes: that of B such sequences, unless it needs more.

    Returns:
        ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and ``layout``.
    """
    batch_size, padded_length = shown.tokens.shape
    counts, slots = np.count_nonzero(shown.visible, axis=1), np.flatnonzero(shown.visible)
    width = _width(counts, None if planned is None else padded_length - planned, padded_length)
    encoder_padded = len(slots) < batch_size * width
    rows: np.ndarray | None = _rows(counts, width) if encoder_padded else None
    src_tokens = _spread(shown.tokens.reshape(-1)[slots], rows, (batch_size, width), pad)
    src_positions = _spread(slots % padded_length, rows, (batch_size, width), 0)
    if positions == "consecutive":
        src_positions = np.where(np.arange(width) < counts[:, None], np.arange(width), 0)
    decoder_rows = np.arange(len(slots)) if rows is None else rows
    entering = shown.visible if shown.entering is None else shown.entering
    enters = entering.reshape(-1)[slots]
    decoder_rows, slots = decoder_rows[enters], slots[enters]
    layout = {
        **output_layout(predicted, planned),
        "positions": torch.from_numpy(src_positions),
        "lengths": torch.from_numpy(lengths),
        "padded_length": padded_length,
        "visible_tokens": int(counts.sum()),
        "decoder_rows": torch.from_numpy(decoder_rows),
        "decoder_slots": torch.from_numpy(slots),
        "seen_outputs": torch.from_numpy(np.flatnonzero(entering[predicted])),
        "seen_rows": torch.from_numpy(decoder_rows[predicted.reshape(-1)[slots]]),
        "all_visible": len(slots) == int(lengths.sum()) and width == padded_length,
        "encoder_padded": encoder_padded,
        "decoder_padded": bool(lengths.min() < padded_length),
    }
    return {"src_tokens": torch.from_numpy(src_tokens), "src_lengths": torch.from_numpy(counts), "layout": layout}


def encoder_input_of_masks(
    tokens: np.ndarray,
    lengths: np.ndarray,
    masks: np.ndarray,
    view: EncoderView,
    pad: int,
    planned: int | None = None,
) -> dict[str, Any]:
    """Make the encoder's input for predicting the tokens at given masks <bool>[B, T], with the view of pretraining.

    The result is deterministic: in the variant "dropped", all masks stay if ``mask_fraction`` > 0.5, otherwise none.
    The other arguments and the result are as in ``encoder_input``.
    """
    inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
    visible = inside if view.sees_masks else inside & ~masks
    entering = inside & ~masks if view.masked_input == "reset" else None
    shown = VisibleTokens(tokens, visible, entering)
    return encoder_input(shown, masks, lengths, pad, view.positions, planned)


def _rows(counts: np.ndarray, width: int) -> np.ndarray:
    """Return flat indices <int64>[sum(counts)] into [B, width]: the first ``counts[i]`` positions of each row i."""
    return np.flatnonzero(np.arange(width) < counts[:, None])


def _spread(values: np.ndarray, rows: np.ndarray | None, shape: tuple[int, int], filler: int) -> np.ndarray:
    """Write ``values`` to flat indices ``rows`` (None: all) of a new <int64>[B, S] filled with ``filler``."""
    if rows is None:
        return values.reshape(shape)
    spread = np.full(shape, filler, dtype=np.int64)
    spread.reshape(-1)[rows] = values
    return spread
