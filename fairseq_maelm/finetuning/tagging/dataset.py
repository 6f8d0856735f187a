"""Batches of windows of labeled sentences, which may be longer than the model's positions."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit

# <s> and </s> around every window.
_AROUND = 2


class Window(NamedTuple):
    """Words [start, stop) of a sentence that the model sees at once, and the words [first, last) that it labels."""

    start: int
    stop: int
    first: int
    last: int


def cut_windows(pieces: Sequence[int], limit: int, overlap: int) -> list[Window]:
    """Cut a sentence into windows of whole words, and label each word in the window where it has most context.

    The amount of context is the minimum of the numbers of pieces before and after the word, as in Devlin et al. (2019);
    the earlier of equal windows labels the word. ``pieces`` has the number of pieces of each word, from 1 to ``limit``,
    the maximum of a window. Neighboring windows share at least ``overlap`` pieces, if whole words leave room for them.
    """
    ends = [0, *accumulate(pieces)]
    if ends[-1] <= limit:
        return [Window(0, len(pieces), 0, len(pieces))]

    def stop_of(start: int) -> int:
        return bisect_right(ends, ends[start] + limit) - 1

    starts = [0]
    while (stop := stop_of(starts[-1])) < len(pieces):
        start = max(bisect_right(ends, ends[stop] - overlap) - 1, starts[-1] + 1)
        # Each window must end after the previous one; otherwise the loop would not end.
        while stop_of(start) <= stop:
            start += 1
        starts.append(start)
    stops = [stop_of(start) for start in starts]

    def context(window: int, word: int) -> int:
        if not starts[window] <= word < stops[window]:
            return -1
        return min(ends[word] - ends[starts[window]], ends[stops[window]] - ends[word + 1])

    def owner(word: int) -> int:
        return max(range(len(starts)), key=lambda window: context(window, word))

    runs = [(window, list(words)) for window, words in groupby(range(len(pieces)), owner)]
    return [Window(starts[window], stops[window], words[0], words[-1] + 1) for window, words in runs]


class TaggingDataset(BatchDataset):
    """The windows of a split, each word of which is labeled in one window.

    Training shuffles the windows within buckets of similar length; otherwise they are sorted by length.

    Attributes:
        windows: the number of the sentence and the window of each item, in the order of the sentences.
        cut_words: number of words with more pieces than a window; the model sees their first pieces.
    """

    def __init__(self, split: TaggedSplit, dictionary: Dictionary, cfg: Any, shuffle: bool) -> None:
        self.dictionary = dictionary
        limit = cfg.tokens_per_sample - _AROUND
        self.cut_words = int((split.piece_counts > limit).sum())
        split = _shortened(split, limit)
        self.windows: list[tuple[int, Window]] = []
        self._words: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64], NDArray[np.int32]]] = []
        word_ends = np.cumsum(split.word_counts, dtype=np.int64)
        piece_ends = np.concatenate([[0], np.cumsum(split.piece_counts, dtype=np.int64)])
        for number, (first, last) in enumerate(zip((word_ends - split.word_counts).tolist(), word_ends.tolist())):
            starts = piece_ends[first : last + 1] - piece_ends[first]
            own = split.pieces[piece_ends[first] : piece_ends[last]]
            self._words.append((own, starts, split.labels[first:last]))
            counts = split.piece_counts[first:last].tolist()
            self.windows += [(number, window) for window in cut_windows(counts, limit, cfg.window_overlap)]
        ends = [self._words[number][1][[window.start, window.stop]] for number, window in self.windows]
        lengths = np.array([stop - start for start, stop in ends], dtype=np.int64) + _AROUND
        super().__init__(lengths, "buckets" if shuffle else "shortest", cfg.seed)

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Collate B windows.

        Returns:
            ``sentence`` <int64>[B], the number of each window's sentence; ``words`` <int64>[B], the number of words to
            label in each; ``rows`` <int64>[W], the rows of the first pieces of these words in the flattened [B, S];
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
            # 1 for <s>.
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
