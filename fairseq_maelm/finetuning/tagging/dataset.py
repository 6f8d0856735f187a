"""Windows of labeled sentences, collated into batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit, sentence_slices
from fairseq_maelm.finetuning.tagging.windows import Window, cut_windows

# <s> and </s> around every window.
_AROUND = 2


class TaggingDataset(BatchDataset):
    """A split; its items are windows, and every word is labeled in one of them.

    Args:
        split: the sentences.
        dictionary: fairseq's.
        limit: the most tokens of a window, ``<s>`` and ``</s>`` included.
        overlap: pieces that neighboring windows of a sentence share at least.
        shuffle: take windows in a new random order in each epoch, and not by length.
        seed: of that order.

    Attributes:
        windows: the sentence and the window of every item, those of a sentence one after the other.
        cut_words: number of words of more pieces than a window holds, of which the model sees the first ones.
    """

    def __init__(
        self, split: TaggedSplit, dictionary: Dictionary, limit: int, overlap: int, shuffle: bool, seed: int
    ) -> None:
        self.dictionary = dictionary
        self.windows: list[tuple[int, Window]] = []
        self.cut_words = int((split.piece_counts > limit - _AROUND).sum())
        self._words: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64], NDArray[np.int32]]] = []
        split = _shortened(split, limit - _AROUND)
        for number, (words, pieces) in enumerate(sentence_slices(split)):
            counts = split.piece_counts[words]
            starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            self._words.append((split.pieces[pieces], starts, split.labels[words]))
            self.windows += [(number, window) for window in cut_windows(counts.tolist(), limit - _AROUND, overlap)]
        sizes = [self._words[number][1][[window.start, window.stop]] for number, window in self.windows]
        lengths = np.array([stop - start for start, stop in sizes], dtype=np.int64) + _AROUND
        super().__init__(lengths, "shuffled" if shuffle else "shortest", seed)

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Collate windows.

        Args:
            indices: <int64>[B] of the items.

        Returns:
            ``sentence`` <int64>[B], the number of the sentence of each window; ``words`` <int64>[B], how many words are
            labeled in each; ``rows`` <int64>[W], where the first pieces of these words stand in the flattened [B, S];
            ``target`` <int64>[W], their labels; ``ntokens``; and ``net_input`` with ``src_tokens`` <int64>[B, S] and
            ``src_lengths`` <int64>[B].
        """
        lengths = self.sizes[indices]
        width = int(lengths.max())
        items = [self.windows[index] for index in indices]
        tokens, rows, targets = [], [], []
        for row, (sentence, window) in enumerate(items):
            pieces, starts, labels = self._words[sentence]
            inner = pieces[starts[window.start] : starts[window.stop]]
            tokens.append(np.concatenate([[self.dictionary.bos()], inner, [self.dictionary.eos()]]))
            # One more for <s>.
            rows.append(starts[window.first : window.last] - starts[window.start] + 1 + row * width)
            targets.append(labels[window.first : window.last])
        return {
            "sentence": torch.tensor([sentence for sentence, _ in items], dtype=torch.int64),
            "words": torch.tensor([window.last - window.first for _, window in items], dtype=torch.int64),
            "rows": torch.from_numpy(np.concatenate(rows)),
            "target": torch.from_numpy(np.concatenate(targets).astype(np.int64)),
            "ntokens": int(lengths.sum()),
            "net_input": {
                "src_tokens": torch.from_numpy(pad_rows(tokens, lengths, self.dictionary.pad())),
                "src_lengths": torch.from_numpy(lengths),
            },
        }


def _shortened(split: TaggedSplit, limit: int) -> TaggedSplit:
    """Keep the first ``limit`` pieces of every word."""
    counts = split.piece_counts
    place_in_word = np.arange(len(split.pieces)) - np.repeat(np.cumsum(counts, dtype=np.int64) - counts, counts)
    shortened = np.minimum(counts, limit).astype(np.int32)
    return replace(split, pieces=split.pieces[place_in_word < limit], piece_counts=shortened)
