"""Blocks of text, masked anew in every epoch and collated into batches that the model takes as they are."""

import logging
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.encoder_view import EncoderView, encoder_input, show_batch
from fairseq_maelm.data.masking import MaskingScheme, draw_masks, rounding_draws
from fairseq_maelm.data.order import order_by_length, padding_share

logger = logging.getLogger(__name__)

# From this share of padding on, a run spends hours on nothing and is told so.
_MUCH_PADDING = 0.1


class Symbols(NamedTuple):
    """Symbols of the vocabulary that batches need: padding and <mask>."""

    pad: int
    mask: int


class MaskedBlockDataset(FairseqDataset):
    """A split for pretraining.

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
        fixed_epoch: Optional[int] = None,
        predicts_all: bool = False,
    ) -> None:
        self.blocks = blocks
        self.scheme = scheme
        self.symbols = symbols
        self.view = view
        self.seed = seed
        self.fixed_epoch = fixed_epoch
        self.predicts_all = predicts_all
        self.epoch = fixed_epoch or 1

    def set_epoch(self, epoch: int) -> None:
        """Draw other masks and another order from now on; called by fairseq before an epoch's batches are made."""
        self.epoch = self.fixed_epoch or epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: fairseq makes new batches, in new worker processes, for every epoch.

        Kept over epochs, batches would be those of the epoch in which the run was started, so that a resumed run would
        not equal an uninterrupted one; and workers, which have copies of this object, would not hear of ``set_epoch``
        and draw the first epoch's masks for ever.
        """
        return False

    @property
    def sizes(self) -> np.ndarray:
        """<int>[blocks], tokens of each full sequence."""
        return self.blocks.sizes

    def __len__(self) -> int:
        return len(self.blocks)

    def num_tokens(self, index: int) -> int:
        """What a sequence adds to ``--max-tokens``: its tokens, masked ones included.

        fairseq multiplies the most of a batch by its number of sequences. That is the padded rectangle [B, T] of the
        decoder, which processes masked tokens too; the encoder's [B, S] is never larger.
        """
        return int(self.sizes[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """<int>[indices], ``num_tokens`` of many."""
        return self.sizes[indices]

    def size(self, index: int) -> int:
        """Tokens of the full sequence, which must not exceed ``--max-positions``."""
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """<int64>[blocks], near-equal lengths together, in a new random order each epoch; see ``order_by_length``."""
        return self._ordered(np.arange(len(self)))

    def _ordered(self, indices: np.ndarray) -> np.ndarray:
        """Put the blocks of an epoch, <int64>[blocks], in order."""
        return indices[order_by_length(self.sizes[indices], rounding_draws(self.seed, self.epoch, indices))]

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> List[np.ndarray]:
        """Cut ordered indices into batches and log how much padding they hold; called by fairseq.

        Raises:
            ValueError: if a sequence alone has more than ``max_tokens`` tokens.
        """
        longest = int(self.sizes[indices].max(initial=0))
        if max_tokens is not None and longest > max_tokens:
            raise ValueError(
                f"--max-tokens {max_tokens} is less than the {longest} tokens of the longest sequence, which fits into "
                f"no batch: give at least --max-tokens {longest}, or a smaller --tokens-per-sample"
            )
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        if batches:
            self._report_padding(batches)
        return batches

    def _report_padding(self, batches: List[np.ndarray]) -> None:
        share = padding_share(batches, self.sizes)
        logger.info("%s batches, %.2f %% of their slots padding", f"{len(batches):,}", 100 * share)
        # The few sequences of a validation set fill no batch with equal lengths, and take no time worth a warning.
        if share > _MUCH_PADDING and self.fixed_epoch is None:
            logger.warning(
                "%.1f %% of the work of this epoch will be done on padding, because batches hold sequences of very "
                "different lengths. Take smaller batches (--max-tokens, --batch-size, "
                "--required-batch-size-multiple 1), or --sample-break-mode none, which makes blocks of equal length",
                100 * share,
            )

    def __getitem__(self, index: int) -> int:
        """The index itself: the collater reads a batch at once."""
        return int(index)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[int]:
        """The indices themselves; called by torch's loader for a batch."""
        return indices

    def collater(self, samples: Sequence[int]) -> Dict[str, Any]:
        """Read, mask and collate a batch.

        Args:
            samples: <int>[B] indices of the sequences.

        Returns:
            fairseq's sample: ``id`` <int64>[B], ``nsentences``, ``ntokens`` (original tokens, masked ones included),
            ``target`` <int64>[M], and ``net_input`` with ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and
            ``layout`` (see ``fairseq_maelm.batch``). Empty for no sequence, which is how fairseq gives ranks equally
            many batches.
        """
        if not len(samples):
            return {}
        indices = np.array(samples, dtype=np.int64)
        tokens, lengths = self.blocks.read(indices, self.symbols.pad)
        inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
        draw = draw_masks(self.scheme, tokens, lengths, indices, self.seed, self.epoch)
        shown = show_batch(
            self.view, draw, inside, self.symbols.mask, self.scheme.real_tokens, indices, self.seed, self.epoch
        )
        predicted = inside if self.predicts_all else draw.predicted
        net_input = encoder_input(shown, predicted, lengths, self.symbols.pad, self.view.positions)
        if self.predicts_all:
            net_input["layout"]["full_tokens"] = torch.from_numpy(tokens)
        return {
            "id": torch.from_numpy(indices),
            "nsentences": len(indices),
            "ntokens": int(lengths.sum()),
            "net_input": net_input,
            "target": torch.from_numpy(tokens).view(-1)[net_input["layout"]["masked_slots"]],
        }
