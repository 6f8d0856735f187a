"""Blocks of text, masked anew in every epoch and collated into batches that the model takes as they are."""

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.encoder_view import EncoderView, encoder_input, show_batch
from fairseq_maelm.data.masking import MaskingScheme, draw_masks, rounding_draws
from fairseq_maelm.data.order import padding_share
from fairseq_maelm.data.rate import RateOfUpdates

logger = logging.getLogger(__name__)

# From this share of padding on, a run spends hours on nothing and is told so.
_MUCH_PADDING = 0.1


class Symbols(NamedTuple):
    """Symbols of the vocabulary that batches need: padding and <mask>."""

    pad: int
    mask: int


class MaskedBlockDataset(BatchDataset):
    """A split for pretraining; what an item adds to ``--max-tokens`` is its tokens, masked ones included.

    fairseq multiplies the most of a batch by its number of sequences. That is the padded rectangle [B, T] of the
    decoder, which processes masked tokens too; the encoder's [B, S] is never larger.

    Args:
        blocks: the text, cut into blocks.
        scheme: how tokens are chosen and treated.
        symbols: of the vocabulary.
        view: what the encoder sees at masked positions.
        seed: of the masks and of the order.
        fixed_epoch: if given, the masks of this epoch are drawn in every epoch (for validation).
        predicts_all: every token is predicted, by a decoder that reads the sequence from left to right; the batch then
            holds the sequence for it.
    """

    def __init__(
        self,
        blocks: TokenBlocks,
        scheme: MaskingScheme,
        symbols: Symbols,
        view: EncoderView,
        seed: int,
        fixed_epoch: int | None = None,
        predicts_all: bool = False,
    ) -> None:
        super().__init__(blocks.sizes, "buckets", seed, fixed_epoch=fixed_epoch)
        self.blocks, self.scheme, self.symbols, self.view = blocks, scheme, symbols, view
        self.predicts_all = predicts_all
        # Of the epoch's batches, where it is not that of the scheme.
        self.rate: RateOfUpdates | None = None

    def _draws(self, indices: np.ndarray) -> np.ndarray:
        # Those that round the number of masked tokens: see ``order_by_length``.
        return rounding_draws(self.seed, self.epoch, indices)

    def batch_by_size(self, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """As ``BatchDataset`` does, and log how much padding the batches hold."""
        batches = super().batch_by_size(*args, **kwargs)
        share = padding_share(batches, self.sizes) if batches else 0.0
        logger.info("%s batches, %.2f %% of their slots padding", f"{len(batches):,}", 100 * share)
        # The few sequences of a validation set fill no batch with equal lengths, and take no time worth a warning.
        if share > _MUCH_PADDING and self.fixed_epoch is None:
            logger.warning(
                "%.1f %% of the work of this epoch will be done on padding, because batches hold sequences of very "
                "different lengths. Take smaller batches (--max-tokens, --batch-size, "
                "--required-batch-size-multiple 1), or --sample-break-mode none, which makes blocks of equal length",
                100 * share,
            )
        return batches

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Read, mask and collate sequences <int64>[B].

        Returns:
            ``ntokens`` (original tokens, masked ones included), ``target`` <int64>[M], and ``net_input`` with
            ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and ``layout`` (see ``fairseq_maelm.batch``).
        """
        tokens, lengths = self.blocks.read(indices, self.symbols.pad)
        inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
        scheme = self.scheme if self.rate is None else replace(self.scheme, mask_prob=self.rate.of_batch(indices))
        draw = draw_masks(scheme, tokens, lengths, indices, self.seed, self.epoch)
        shown = show_batch(
            self.view, draw, inside, self.symbols.mask, self.scheme.real_tokens, indices, self.seed, self.epoch
        )
        predicted = inside if self.predicts_all else draw.predicted
        net_input = encoder_input(shown, predicted, lengths, self.symbols.pad, self.view.positions)
        if self.predicts_all:
            net_input["layout"]["full_tokens"] = torch.from_numpy(tokens)
        return {
            "ntokens": int(lengths.sum()),
            "net_input": net_input,
            "target": torch.from_numpy(tokens).view(-1)[net_input["layout"]["masked_slots"]],
        }
