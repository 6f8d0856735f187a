"""fairseq datasets of training pairs with their negatives, and of the texts of a validation split."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.finetuning.retrieval.pooling import cut

_NO_NEGATIVES = np.empty(0, dtype=np.int64)


class Texts:
    """Binarized queries or documents, each between <s> and </s>, and cut to ``max_length`` tokens.

    ``prefix`` is the path of the .bin and .idx files without suffix.
    """

    def __init__(self, prefix: str, dictionary: Dictionary, max_length: int) -> None:
        # The files contain </s>, but not <s>.
        sizes = read_index(prefix)[0].astype(np.int64) + 1
        self._items, self._dictionary, self._max_length = MMapIndexedDataset(prefix), dictionary, max_length
        self.lengths = np.minimum(sizes, max_length)
        self.cut = int((sizes > max_length).sum())

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, row: int) -> np.ndarray:
        """Return the tokens <int64>[n] of one text."""
        return cut(self._items[int(row)].numpy()[:-1], self._dictionary, self._max_length)

    def batch(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """Collate the texts of some rows <int64>[B]."""
        return self.collate([self.tokens(row) for row in rows])

    def collate(self, sequences: list[np.ndarray]) -> dict[str, torch.Tensor]:
        """Make the model's input: ``src_tokens`` <int64>[B, S] and ``src_lengths`` <int64>[B]."""
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        return {
            "src_tokens": torch.from_numpy(pad_rows(sequences, lengths, self._dictionary.pad())),
            "src_lengths": torch.from_numpy(lengths),
        }


class RetrievalPairDataset(BatchDataset):
    """Pairs of a query and one of its relevant documents, for training.

    The order is random and not by length, because negatives of equal length would be told apart by length alone.

    Args:
        queries: all queries.
        documents: the whole corpus.
        relevant: row of each query of the split -> <int64>[P] rows of its relevant documents.
        negatives: row of a query -> <int64>[n] rows of its hard negatives; a query may have none.
        drawn: maximum number of hard negatives drawn for a pair in each epoch.
        seed: seed of the draws and of the order.
    """

    largest_item = "one query with its document"

    def __init__(
        self,
        queries: Texts,
        documents: Texts,
        relevant: Mapping[int, np.ndarray],
        negatives: Mapping[int, np.ndarray],
        drawn: int,
        seed: int,
    ) -> None:
        self.queries, self.documents = queries, documents
        self.relevant, self.negatives, self.drawn = relevant, negatives, drawn
        # <int64>[pairs], the rows of the pairs' queries and documents.
        self.query_rows = np.repeat(np.array(list(relevant), np.int64), [len(rows) for rows in relevant.values()])
        self.document_rows = np.concatenate([*relevant.values(), _NO_NEGATIVES])
        of_queries, of_documents = queries.lengths[self.query_rows], documents.lengths[self.document_rows]
        token_counts = of_queries + of_documents + drawn * int(np.ceil(documents.lengths.mean()))
        super().__init__(np.maximum(of_queries, of_documents), "shuffled", seed, token_counts)

    def draw_negatives(self, index: int) -> np.ndarray:
        """Draw <int64>[n] rows of the pair's hard negatives in this epoch, the same in every process."""
        available = self.negatives.get(int(self.query_rows[index]), _NO_NEGATIVES)
        generator = np.random.default_rng([self.seed, self.epoch, index])
        return generator.choice(available, min(self.drawn, len(available)), replace=False)

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Read and collate Q pairs <int64>[Q].

        Returns:
            ``ntokens``; ``net_input`` with the queries; ``documents`` with C documents, relevant ones and hard
            negatives without duplicates; ``document_ids`` <int64>[C], their rows; ``target`` <int64>[Q], the row of
            each query's document; ``positives`` <int64>[Q, P], the rows of all its relevant documents, padded with -1.
        """
        targets, query_rows = self.document_rows[indices], self.query_rows[indices]
        rows = np.unique(np.concatenate([targets, *map(self.draw_negatives, indices)])).astype(np.int64)
        positives = [self.relevant[int(query)] for query in query_rows]
        net_input, documents = self.queries.batch(query_rows), self.documents.batch(rows)
        return {
            "ntokens": int(net_input["src_lengths"].sum() + documents["src_lengths"].sum()),
            "net_input": net_input,
            "documents": documents,
            "document_ids": torch.from_numpy(rows),
            "target": torch.from_numpy(targets),
            "positives": torch.from_numpy(pad_rows(positives, np.array([len(each) for each in positives]), -1)),
        }


class Target(NamedTuple):
    """The relevance judgments of a validation split with Q queries and N documents."""

    relevant: Sequence[np.ndarray]  # [Q] of <int64>[P], the rows of each query's relevant documents
    judgments: Mapping[str, Mapping[str, int]]  # query id -> document id -> relevance
    query_ids: Sequence[str]  # [Q]
    document_ids: Sequence[str]  # [N]


class RetrievalTextDataset(BatchDataset):
    """The texts that validation embeds: first the queries <int64>[Q] of the split ``name``, then all documents."""

    def __init__(self, name: str, queries: Texts, documents: Texts, query_rows: np.ndarray, target: Target) -> None:
        self.name, self.queries, self.documents = name, queries, documents
        self.query_rows, self.target = query_rows, target
        # The longest texts first, so that a lack of memory shows in the first batch.
        super().__init__(np.concatenate([queries.lengths[query_rows], documents.lengths]), "longest")

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Read and collate texts <int64>[B] into ``ntokens``, ``net_input`` and ``split``, the split's name."""
        first = len(self.query_rows)
        sequences = [
            self.queries.tokens(self.query_rows[index]) if index < first else self.documents.tokens(index - first)
            for index in indices
        ]
        return {
            "ntokens": int(self.sizes[indices].sum()),
            "net_input": self.documents.collate(sequences),
            "split": self.name,
        }
