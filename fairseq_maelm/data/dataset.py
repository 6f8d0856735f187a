"""Blocks of text, masked anew in every epoch and collated into batches that the model takes as they are."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.batch import Layout
from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks


def pad_rows(rows: Sequence[np.ndarray], lengths: np.ndarray, filler: int) -> np.ndarray:
    """Stack sequences into <int64>[B, T], padded on the right with ``filler``."""
    padded = np.full((len(rows), int(lengths.max())), filler, dtype=np.int64)
    for row, tokens in zip(padded, rows):
        row[: len(tokens)] = tokens
    return padded


class MaskedBlockDataset(FairseqDataset):
    """A split for pretraining.

    Args:
        blocks: the text, cut into blocks.
        scheme: how tokens are chosen and treated.
        pad: padding symbol.
        mask_index: the <mask> symbol, or None to drop masked tokens from the encoder's input (MAE-LM).
        seed: of the masks and of the order.
        fixed_epoch: if given, the masks of this epoch are drawn in every epoch (for validation).
    """

    def __init__(
        self,
        blocks: TokenBlocks,
        scheme: MaskingScheme,
        pad: int,
        mask_index: Optional[int],
        seed: int,
        fixed_epoch: Optional[int] = None,
    ) -> None:
        self.blocks = blocks
        self.scheme = scheme
        self.pad = pad
        self.mask_index = mask_index
        self.seed = seed
        self.fixed_epoch = fixed_epoch
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
        """<int64>[blocks], tokens of each full sequence."""
        return self.blocks.sizes

    def __len__(self) -> int:
        return len(self.blocks)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """<int64>[blocks] by length, which keeps padding low, with equal lengths in a new random order each epoch."""
        generator = np.random.default_rng([self.seed, self.epoch])
        return np.lexsort((generator.permutation(len(self)), self.sizes))

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> List[np.ndarray]:
        """Cut ordered indices into batches, none left out; called by fairseq.

        fairseq drops the last batch when its size is no multiple of ``required_batch_size_multiple``, by default 8:
        the longest sequences, all of a small split, and in validation others for every batch size.
        """
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        remainder = indices[sum(len(batch) for batch in batches) :]
        return [*batches, remainder] if len(remainder) else batches

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return {"id": int(index), "tokens": self.blocks[index]}

    def collater(self, samples: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Mask and collate.

        Returns:
            fairseq's sample: ``id`` <int64>[B], ``nsentences``, ``ntokens`` (original tokens, masked ones included),
            ``target`` <int64>[M], and ``net_input`` with ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and
            ``layout`` (see ``fairseq_maelm.batch``).
        """
        if not samples:
            return {}
        indices = np.array([sample["id"] for sample in samples], dtype=np.int64)
        lengths = np.array([len(sample["tokens"]) for sample in samples], dtype=np.int64)
        tokens = pad_rows([sample["tokens"] for sample in samples], lengths, self.pad)
        draw = draw_masks(self.scheme, tokens, lengths, indices, self.seed, self.epoch)
        return {
            "id": torch.from_numpy(indices),
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            "net_input": self._encoder_input(draw, lengths),
            "target": torch.from_numpy(tokens[draw.predicted]),
        }

    def _encoder_input(self, draw: MaskDraw, lengths: np.ndarray) -> Dict[str, Any]:
        inside = np.arange(draw.tokens.shape[1])[None, :] < lengths[:, None]
        if self.mask_index is None:
            return encoder_input(draw.tokens, inside & ~draw.masked, draw.predicted, lengths, self.pad)
        shown = np.where(draw.masked, self.mask_index, draw.tokens)
        return encoder_input(shown, inside, draw.predicted, lengths, self.pad)


def encoder_input(
    tokens: np.ndarray, visible: np.ndarray, predicted: np.ndarray, lengths: np.ndarray, pad: int
) -> Dict[str, Any]:
    """Take the visible tokens out of full sequences and say where they came from.

    Args:
        tokens: <int64>[B, T] full sequences as the encoder is to see them.
        visible: <bool>[B, T] True where the encoder sees the token.
        predicted: <bool>[B, T] True at positions to predict.
        lengths: <int64>[B] of the full sequences.
        pad: padding symbol.

    Returns:
        ``src_tokens`` <int64>[B, S], ``src_lengths`` <int64>[B] and ``layout``.
    """
    rows, positions = np.nonzero(visible)
    counts = visible.sum(axis=1)
    width = int(counts.max())
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    src_tokens = np.full((len(tokens), width), pad, dtype=np.int64)
    src_tokens[rows, columns] = tokens[rows, positions]
    src_positions = np.zeros_like(src_tokens)
    src_positions[rows, columns] = positions
    full_length = tokens.shape[1]
    layout: Layout = {
        "positions": torch.from_numpy(src_positions),
        "full_lengths": torch.from_numpy(lengths),
        "full_length": full_length,
        "visible_rows": torch.from_numpy(rows * width + columns),
        "visible_slots": torch.from_numpy(rows * full_length + positions),
        "masked_slots": torch.from_numpy(np.flatnonzero(predicted)),
        "encoder_padded": bool((counts < width).any()),
        "decoder_padded": bool((lengths < full_length).any()),
    }
    return {"src_tokens": torch.from_numpy(src_tokens), "src_lengths": torch.from_numpy(counts), "layout": layout}
