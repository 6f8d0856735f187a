"""The dataset of single sentences or sentence pairs, in batches of similar length."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from numpy.typing import NDArray

from fairseq_maelm.batch import whole_sequences
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.token_files import check_tokens, read_index
from fairseq_maelm.models.labels import Labels
from fairseq_maelm.text.dictionary import MASK
from fairseq_maelm.text.truncation import join_sentences


def example_lengths(folder: Path, split: str) -> NDArray[np.int64]:
    """Return the number of tokens <int64>[n] of each example, ``<s> a </s>`` or ``<s> a </s> </s> b </s>``."""
    prefixes = [folder / name / split for name in ("input0", "input1") if (folder / name / f"{split}.idx").is_file()]
    # Each sentence is stored with </s>; the symbol in front of it is not stored.
    lengths = [read_index(str(prefix))[0].astype(np.int64) + 1 for prefix in prefixes]
    return np.sum(lengths, axis=0, dtype=np.int64)


class SentencesDataset(BatchDataset):
    """A split of a folder of ``maelm prepare sentences``; longer examples are truncated to ``limit`` tokens.

    ``cut`` is the number of truncated examples, the longer sentence of a pair first. ``targets`` are the right answers,
    as ``Labels`` has them; None for a split without labels.
    """

    def __init__(
        self, folder: Path, split: str, dictionary: Dictionary, labels: Labels, limit: int, seed: int, training: bool
    ) -> None:
        names = [name for name in ("input0", "input1") if (folder / name / f"{split}.idx").is_file()]
        if not names:
            raise FileNotFoundError(
                f"there is no {folder / 'input0' / split}.idx: prepare the task with the split {split}"
            )
        lengths = example_lengths(folder, split)
        for name in names:
            check_tokens(str(folder / name / split), dictionary.index(MASK))
        super().__init__(np.minimum(lengths, limit), "buckets", seed, fixed_epoch=None if training else 0)
        self.cut = int((lengths > limit).sum())
        self.described = f"{len(lengths):,} examples of up to {self.sizes.max(initial=0)} tokens"
        said = f"{self.cut:,} examples are longer than {limit} tokens and are truncated"
        self.warnings = [said] if self.cut else []
        self.dictionary, self.limit, self.labels = dictionary, limit, labels
        self._sentences = [MMapIndexedDataset(str(folder / name / split)) for name in names]
        self.targets: Any = labels.read(folder / "label" / split)

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Make a batch of examples <int64>[B].

        Return ``whole_sequences``, each ``<s> a </s>`` or ``<s> a </s> </s> b </s>``; and, if the split has labels,
        ``target``: class indices <int64>[B], sets <bool>[B, labels] or numbers <float32>[B].
        """
        lengths = self.sizes[indices].astype(np.int64)
        sequences = [self._tokens(int(index)) for index in indices]
        batch = whole_sequences(sequences, lengths, self.dictionary.pad(), self.width(indices))
        if self.targets is not None:
            batch["target"] = torch.from_numpy(self.targets[indices])
        return batch

    def _tokens(self, index: int) -> np.ndarray:
        sentences = [column[index].numpy() for column in self._sentences]
        return join_sentences(sentences, self.dictionary.bos(), self.limit)
