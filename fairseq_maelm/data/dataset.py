"""Blocks of text, masked anew in every epoch and collated into batches that the model takes as they are."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.encoder_view import EncoderView, encoder_input, show_batch
from fairseq_maelm.data.masking import MaskingScheme, draw_masks


def pad_rows(rows: Sequence[np.ndarray], lengths: np.ndarray, filler: int) -> np.ndarray:
    """Stack sequences into <int64>[B, T], padded on the right with ``filler``."""
    padded = np.full((len(rows), int(lengths.max())), filler, dtype=np.int64)
    for row, tokens in zip(padded, rows):
        row[: len(tokens)] = tokens
    return padded


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
        tokens = pad_rows([sample["tokens"] for sample in samples], lengths, self.symbols.pad)
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
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            "net_input": net_input,
            "target": torch.from_numpy(tokens[predicted]),
        }
