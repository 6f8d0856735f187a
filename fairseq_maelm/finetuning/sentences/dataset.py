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
from fairseq_maelm.text.dictionary import MASK
from fairseq_maelm.text.truncation import join_sentences


def example_lengths(folder: Path, split: str) -> NDArray[np.int64]:
    """Return the number of tokens <int64>[n] of each example, ``<s> a </s>`` or ``<s> a </s> </s> b </s>``."""
    prefixes = [folder / name / split for name in ("input0", "input1") if (folder / name / f"{split}.idx").is_file()]
    # Each sentence is stored with </s>; the symbol in front of it is not stored.
    lengths = [read_index(str(prefix))[0].astype(np.int64) + 1 for prefix in prefixes]
    return np.sum(lengths, axis=0, dtype=np.int64)


class SentencesDataset(BatchDataset):
    """A split from a prepared sentence folder.

    Args:
        folder: a folder with the layout of ``fairseq_maelm.finetuning.sentences.prepare``.
        split: name of the split.
        dictionary: the dictionary of the texts.
        labels: the dictionary of the labels; None for numbers.
        limit: maximum number of tokens, special tokens included; the longer sentence of a pair is cut first.
        seed: random seed of the example order.
        training: whether the order changes in every epoch.
        multi_label: whether an example has a set of labels.

    Attributes:
        cut: number of examples that are cut.
        targets: what ``load_targets`` returns.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        dictionary: Dictionary,
        labels: Dictionary | None,
        limit: int,
        seed: int,
        training: bool,
        multi_label: bool = False,
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
        self.dictionary, self.limit = dictionary, limit
        self._sentences = [MMapIndexedDataset(str(folder / name / split)) for name in names]
        self.targets = load_targets(folder / "label" / split, labels, multi_label)

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Make a batch of examples <int64>[B].

        Returns:
            ``whole_sequences``, each ``<s> a </s>`` or ``<s> a </s> </s> b </s>``; and, if the split has labels,
            ``target``: class indices <int64>[B], sets <bool>[B, classes] or numbers <float32>[B].
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


def load_targets(prefix: Path, labels: Dictionary | None, multi_label: bool = False) -> np.ndarray | None:
    """Return class indices <int64>[examples], numbers <float32>[examples] or sets <bool>[examples, classes].

    The targets are sets if ``multi_label``, and None for a split without labels.
    """
    if labels is None:
        numbers = prefix.with_name(f"{prefix.name}.label")
        return np.loadtxt(numbers, dtype=np.float32, ndmin=1) if numbers.is_file() else None
    if not prefix.with_name(f"{prefix.name}.idx").is_file():
        return None
    read_index(str(prefix))
    if multi_label:
        rows = MMapIndexedDataset(str(prefix))
        found = np.zeros((len(rows), len(labels) - labels.nspecial), dtype=np.bool_)
        for place, classes in enumerate(rows):
            found[place, classes[:-1].numpy() - labels.nspecial] = True
        return found
    stored = [tokens[tokens != labels.eos()].tolist() for tokens in MMapIndexedDataset(str(prefix))]
    if any(len(row) != 1 for row in stored):
        raise ValueError(f"{prefix}.idx has rows with none or several labels, but here each row needs exactly one")
    return np.array(stored, dtype=np.int64)[:, 0] - labels.nspecial
