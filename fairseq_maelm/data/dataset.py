"""The pretraining dataset: blocks of text with new masks in every epoch, collated into the model's batches."""

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fairseq_maelm.data.batches import BatchDataset, padding_share
from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.masking import (
    MaskingScheme,
    draw_masks,
    keep_fraction,
    mask_counts,
    order_draws,
    replacements,
)
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input
from fairseq_maelm.data.schedule import ScheduledEpoch

logger = logging.getLogger(__name__)

# The share of padding above which a warning is logged.
_MUCH_PADDING = 0.1


class Symbols(NamedTuple):
    """Token ids of the special symbols that are used in batches."""

    pad: int
    mask: int


class MaskedBlockDataset(BatchDataset):
    """A split for pretraining.

    ``scheme`` tells which tokens are predicted, and ``view`` what the encoder sees at masked positions. If
    ``predicts_all``, a left-to-right decoder predicts every token, and batches include the full sequences. With
    ``fixed_epoch``, all epochs use the masks of that one, as in validation.

    ``--max-tokens`` counts masked tokens too: fairseq limits B * T, the size of the padded full sequences, which enter
    the decoder. The encoder's input, B * S, is never larger.
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
        # Masking rates other than the scheme's, and short sequences, of the epoch's batches.
        self.scheduled: ScheduledEpoch | None = None

    def _draws(self, indices: np.ndarray) -> np.ndarray:
        return order_draws(self.seed, self.epoch, indices)

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the lengths of blocks <int>[indices], padded as in their batches."""
        return self.padded(self.sizes[indices])

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        """Return all indices, and an empty list of those to leave out.

        No block is longer than the model's positions. fairseq would leave out of training those above --max-tokens,
        which may be most of the text; ``batch_by_size`` refuses them.
        """
        return indices, []

    def batch_by_size(self, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Split indices into batches as ``BatchDataset`` does, and log the fraction of padding."""
        batches = super().batch_by_size(*args, **kwargs)
        share = padding_share(batches, self.sizes) if batches else 0.0
        logger.info("%s batches, %.2f %% of their slots padding", f"{len(batches):,}", 100 * share)
        # Validation sets are too small to avoid padding, and too small for padding to matter. Once is enough.
        if share > _MUCH_PADDING and self.fixed_epoch is None and self.epoch == 1:
            logger.warning(
                "%.1f %% of the computation will be on padding, because batches hold sequences of very "
                "different lengths. Use smaller batches (--max-tokens, --batch-size, "
                "--required-batch-size-multiple 1), or --sample-break-mode none, which makes blocks of equal length",
                100 * share,
            )
        return batches

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Read, mask and collate sequences <int64>[B].

        Returns:
            ``ntokens`` (all original tokens), ``target`` <int64>[M], without spare outputs, and ``net_input`` with
            ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and ``layout`` (see ``fairseq_maelm.batch``).
        """
        tokens, lengths = self.blocks.read(indices, self.symbols.pad, self.width(indices))
        scheme = self.scheme
        if self.scheduled is not None:
            scheme = replace(scheme, mask_prob=self.scheduled.mask_prob(indices))
            if self.scheduled.halves_blocks(indices):
                tokens, lengths, indices = halves(tokens, lengths, indices, self.blocks.first_symbol)
        inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
        draw = draw_masks(scheme, tokens, lengths, indices, self.seed, self.epoch)
        staying = random_tokens = None
        if self.view.mask_fraction:
            staying = keep_fraction(self.view.mask_fraction, indices, self.seed, self.epoch, tokens.shape[1])
        if self.view.shows_random_tokens:
            random_tokens = replacements(scheme.real_tokens, indices, self.seed, self.epoch, tokens.shape[1])
        shown = self.view.apply(draw, inside, self.symbols.mask, staying, random_tokens)
        predicted = inside if self.predicts_all else draw.predicted
        planned = int(mask_counts(scheme.mask_prob, inside.shape[1])) if self.few_shapes else None
        net_input = encoder_input(shown, predicted, lengths, self.symbols.pad, self.view.positions, planned)
        if self.predicts_all:
            net_input["layout"]["full_tokens"] = torch.from_numpy(tokens)
        return {
            "ntokens": int(lengths.sum()),
            "net_input": net_input,
            "target": torch.from_numpy(tokens[predicted]),
        }


def halves(
    tokens: np.ndarray, lengths: np.ndarray, indices: np.ndarray, first_symbol: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut sequences <int64>[B, T] of lengths 2 to T in half; second halves begin with the first symbol, too.

    It takes the place of their first token. Return tokens <int64>[C, half of T, rounded up], lengths and indices
    <int64>[C] of the halves with two or more tokens. No two halves in a dataset have the same index, by which masks are
    drawn.
    """
    count, width = tokens.shape
    half = max(2, -(-width // 2))  # a sequence has two tokens or more
    cut = np.pad(tokens, ((0, 0), (0, 2 * half - width)), mode="edge").reshape(2 * count, half)
    cut[1::2, 0] = first_symbol
    sizes = np.clip(lengths[:, None] - [0, half], 0, half).reshape(-1)
    numbers = (2 * indices[:, None] + [0, 1]).reshape(-1)
    kept = sizes > 1
    return cut[kept], sizes[kept], numbers[kept]
