"""Batches of windows over labeled sentences; sentences may be longer than the model's maximum."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_maelm.batch import whole_sequences
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.windows import cut_windows, most_context
from fairseq_maelm.finetuning.tagging.prepare import TaggedSplit

_AROUND = 2  # <s> and </s> around every window


class Window(NamedTuple):
    """A window of a sentence: the model sees words [start, stop) and labels words [first, last)."""

    start: int
    stop: int
    first: int
    last: int


def windows_of(ends: Sequence[int], limit: int, overlap: int) -> list[Window]:
    """Return the windows of ``cut_windows``; each word is labeled where it has the most context."""
    bounds = cut_windows(ends, limit, overlap)
    if len(bounds) == 1:
        return [Window(*bounds[0], *bounds[0])]
    found, first = np.unique(most_context(bounds, ends), return_index=True)
    lasts = [*first[1:].tolist(), len(ends) - 1]
    return [Window(*bounds[number], *own) for number, *own in zip(found.tolist(), first.tolist(), lasts)]


class TaggingDataset(BatchDataset):
    """A split's windows; each word is labeled in one window only.

    Training shuffles the windows within buckets of similar length; otherwise they are sorted by length. ``windows`` are
    (sentence index, window) in the order of the sentences. Labels from ``unknown`` on are those that the training file
    lacks.
    """

    def __init__(self, split: TaggedSplit, dictionary: Dictionary, cfg: Any, unknown: int, shuffle: bool) -> None:
        self.dictionary, self.unknown = dictionary, unknown
        limit = cfg.tokens_per_sample - _AROUND
        # The model sees only the first pieces of such words.
        cut = int((split.piece_counts > limit).sum())
        self.warnings = [f"{cut} words are longer than a window and are truncated"] if cut else []
        split = _shortened(split, limit)
        self.windows: list[tuple[int, Window]] = []
        self._words: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64], NDArray[np.int32]]] = []
        word_ends = np.cumsum(split.word_counts, dtype=np.int64)
        piece_ends = np.concatenate([[0], np.cumsum(split.piece_counts, dtype=np.int64)])
        for number, (first, last) in enumerate(zip((word_ends - split.word_counts).tolist(), word_ends.tolist())):
            starts = piece_ends[first : last + 1] - piece_ends[first]
            own = split.pieces[piece_ends[first] : piece_ends[last]]
            self._words.append((own, starts, split.labels[first:last]))
            self.windows += [(number, window) for window in windows_of(starts.tolist(), limit, cfg.window_overlap)]
        ends = [self._words[number][1][[window.start, window.stop]] for number, window in self.windows]
        lengths = np.array([stop - start for start, stop in ends], dtype=np.int64) + _AROUND
        super().__init__(lengths, "buckets" if shuffle else "shortest", cfg.seed)
        windows = f"{len(self):,} windows of up to {cfg.tokens_per_sample} tokens"
        self.described = f"{len(split.word_counts):,} sentences in {windows}"

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Any]:
        """Collate B windows.

        Return ``sentence`` <int64>[B], the sentence index of each window; ``words`` <int64>[B], the number W_b of words
        to label in each window; for all W = sum(W_b) words, ``rows`` <int64>[W], the index of the word's first piece in
        the flattened [B, S], and ``target`` <int64>[W], the label id; ``terms``, the number of known labels; and
        ``whole_sequences``.
        """
        lengths, width = self.sizes[indices], self.width(indices)
        items = [self.windows[index] for index in indices]
        tokens, rows, targets = [], [], []
        for row, (sentence, window) in enumerate(items):
            pieces, starts, labels = self._words[sentence]
            inner = pieces[starts[window.start] : starts[window.stop]]
            tokens.append(np.concatenate([[self.dictionary.bos()], inner, [self.dictionary.eos()]]))
            # 1 for <s>.
            rows.append(starts[window.first : window.last] - starts[window.start] + 1 + row * width)
            targets.append(labels[window.first : window.last])
        target = np.concatenate(targets).astype(np.int64)
        return {
            "sentence": torch.tensor([sentence for sentence, _ in items], dtype=torch.int64),
            "words": torch.tensor([window.last - window.first for _, window in items], dtype=torch.int64),
            "rows": torch.from_numpy(np.concatenate(rows)),
            "target": torch.from_numpy(target),
            "terms": int((target < self.unknown).sum()),
            **whole_sequences(tokens, lengths, self.dictionary.pad(), width),
        }


def _shortened(split: TaggedSplit, limit: int) -> TaggedSplit:
    """Truncate every word to its first ``limit`` pieces."""
    counts = split.piece_counts
    place_in_word = np.arange(len(split.pieces)) - np.repeat(np.cumsum(counts, dtype=np.int64) - counts, counts)
    shortened = np.minimum(counts, limit).astype(np.int32)
    return split._replace(pieces=split.pieces[place_in_word < limit], piece_counts=shortened)
