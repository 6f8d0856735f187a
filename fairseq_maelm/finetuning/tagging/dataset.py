"""Windows of labeled sentences, collated into batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from numpy.typing import NDArray

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit, sentence_slices
from fairseq_maelm.finetuning.tagging.windows import Window, cut_windows

# <s> and </s> around every window.
_AROUND = 2


class TaggingDataset(FairseqDataset):
    """A split; its items are windows, and every word is labeled in one of them.

    Args:
        split: the sentences.
        dictionary: fairseq's.
        limit: the most tokens of a window, ``<s>`` and ``</s>`` included.
        overlap: pieces that neighboring windows of a sentence share at least.
        shuffle: take windows in a new random order in each epoch.
        seed: of that order.

    Attributes:
        windows: the sentence and the window of every item, those of a sentence one after the other.
        cut_words: number of words of more pieces than a window holds, of which the model sees the first ones.
    """

    def __init__(
        self, split: TaggedSplit, dictionary: Dictionary, limit: int, overlap: int, shuffle: bool, seed: int
    ) -> None:
        self.dictionary, self.shuffle, self.seed, self.epoch = dictionary, shuffle, seed, 1
        self.windows: list[tuple[int, Window]] = []
        self.cut_words = int((split.piece_counts > limit - _AROUND).sum())
        self._words: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64], NDArray[np.int32]]] = []
        for number, (words, pieces) in enumerate(sentence_slices(split)):
            counts = split.piece_counts[words]
            tokens = split.pieces[pieces]
            if counts.max() > limit - _AROUND:
                tokens, counts = _shortened(tokens, counts, limit - _AROUND)
            starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            self._words.append((tokens, starts, split.labels[words]))
            self.windows += [(number, window) for window in cut_windows(counts.tolist(), limit - _AROUND, overlap)]
        self.sizes = np.array([self._length(*item) for item in self.windows], dtype=np.int64)

    def _length(self, sentence: int, window: Window) -> int:
        starts = self._words[sentence][1]
        return int(starts[window.stop] - starts[window.start]) + _AROUND

    def __len__(self) -> int:
        return len(self.windows)

    def set_epoch(self, epoch: int) -> None:
        """Take another order from now on; called by fairseq before an epoch's batches are made."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: a resumed run would otherwise have the batches of the epoch in which it was started."""
        return False

    def num_tokens(self, index: int) -> int:
        """Tokens of a window."""
        return int(self.sizes[index])

    def num_tokens_vec(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """<int64>[indices], ``num_tokens`` of many."""
        return self.sizes[indices]

    def size(self, index: int) -> int:
        """Tokens of a window, which are never more than the limit."""
        return int(self.sizes[index])

    def ordered_indices(self) -> NDArray[np.int64]:
        """<int64>[items] in a random order for training, by length otherwise, which leaves less padding."""
        if self.shuffle:
            return np.random.default_rng([self.seed, self.epoch]).permutation(len(self))
        return np.argsort(self.sizes, kind="stable")

    def __getitem__(self, index: int) -> int:
        """The index itself: the collater reads a batch at once."""
        return int(index)

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Collate windows.

        Args:
            samples: <int>[B] indices of the items.

        Returns:
            fairseq's sample: ``id`` <int64>[B]; ``sentence`` <int64>[B], the number of the sentence of each window;
            ``words`` <int64>[B], how many words are labeled in each; ``rows`` <int64>[W], where the first pieces of
            these words stand in the flattened [B, S]; ``target`` <int64>[W], their labels; ``nsentences``, ``ntokens``;
            and ``net_input`` with ``src_tokens`` <int64>[B, S] and ``src_lengths`` <int64>[B]. Empty for no window.
        """
        if not len(samples):
            return {}
        lengths = self.sizes[np.asarray(samples)]
        width = int(lengths.max())
        tokens, rows, targets, words = [], [], [], []
        for row, index in enumerate(samples):
            sentence, window = self.windows[index]
            pieces, starts, labels = self._words[sentence]
            inner = pieces[starts[window.start] : starts[window.stop]]
            tokens.append(np.concatenate([[self.dictionary.bos()], inner, [self.dictionary.eos()]]))
            # One more for <s>.
            rows.append(starts[window.first : window.last] - starts[window.start] + 1 + row * width)
            targets.append(labels[window.first : window.last])
            words.append(window.last - window.first)
        return {
            "id": torch.tensor(samples, dtype=torch.int64),
            "sentence": torch.tensor([self.windows[index][0] for index in samples], dtype=torch.int64),
            "words": torch.tensor(words, dtype=torch.int64),
            "rows": torch.from_numpy(np.concatenate(rows)),
            "target": torch.from_numpy(np.concatenate(targets).astype(np.int64)),
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            "net_input": {
                "src_tokens": torch.from_numpy(pad_rows(tokens, lengths, self.dictionary.pad())),
                "src_lengths": torch.from_numpy(lengths),
            },
        }


def _shortened(
    tokens: NDArray[np.unsignedinteger], counts: NDArray[np.int32], limit: int
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]:
    """Keep the first ``limit`` pieces of every word."""
    place_in_word = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
    return tokens[place_in_word < limit], np.minimum(counts, limit).astype(np.int32)
