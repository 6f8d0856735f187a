"""Retrieval over the whole corpus at the end of validation, from the embeddings that each rank has computed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.retrieval.gather import gather_rows
from fairseq_maelm.finetuning.retrieval.loss import contrastive_loss
from fairseq_maelm.finetuning.retrieval.measures import DEPTH, VALIDATION_MEASURES, measure
from fairseq_maelm.finetuning.retrieval.search import blocks_of, merge, search

# Pairs that choose among one another's documents in the loss of validation. Not the batch size of training: losses of
# runs with other batch sizes could not be compared.
PAIRS_OF_A_LOSS = 32

_BLOCK = 65_536

METRICS = ("loss", "accuracy", *VALIDATION_MEASURES)


class Target(NamedTuple):
    """What a validation split asks for.

    Attributes:
        relevant: for each of its Q queries <int64>[P] the rows of relevant documents among the N.
        judgments: query -> document -> relevance, by ids.
        query_ids: ids of the Q queries.
        document_ids: ids of the N documents.
        temperature: of the loss.
    """

    relevant: Sequence[np.ndarray]
    judgments: Mapping[str, Mapping[str, int]]
    query_ids: Sequence[str]
    document_ids: Sequence[str]
    temperature: float


class EmbeddingStore:
    """Embeddings that this rank has computed, by item; items below Q are queries, the others documents."""

    def __init__(self) -> None:
        self._indices: list[Tensor] = []
        self._rows: list[Tensor] = []

    def add(self, indices: Tensor, embeddings: Tensor) -> None:
        """Keep <float32>[B, D] of items <int64>[B]; repetitions count once."""
        self._indices.append(indices.cpu())
        self._rows.append(embeddings.float().cpu())

    def take(self) -> tuple[Tensor, Tensor]:
        """Hand over all items <int64>[n], ascending and each once, with their embeddings <float32>[n, D]."""
        indices, rows = torch.cat(self._indices), torch.cat(self._rows)
        self._indices, self._rows = [], []
        return _distinct(indices, rows)


def retrieve(indices: Tensor, rows: Tensor, queries: Tensor, device: torch.device, group: Any) -> tuple[Tensor, Tensor]:
    """Search the documents of all ranks.

    Args:
        indices: <int64>[n] rows of this rank's documents among all, ascending.
        rows: <float32>[n, D] their embeddings, on the CPU.
        queries: <float32>[Q, D] of all ranks.
        device: that the group's backend works on.
        group: torch's process group, or None.

    Returns:
        scores <float32>[Q, k], falling, and rows <int64>[Q, k] of the documents; k is ``DEPTH`` or the number of
        documents. The same on every rank.
    """
    scores, columns = search(queries, blocks_of(rows.numpy(), _BLOCK), DEPTH)
    # A rank may have fewer documents than are looked for.
    wide = (len(queries), DEPTH - scores.shape[1])
    scores = torch.cat([scores, scores.new_full(wide, float("-inf"))], dim=1)
    found = torch.cat([indices[columns], columns.new_full(wide, -1)], dim=1)
    scores, found = _side_by_side(scores, device, group), _side_by_side(found, device, group)
    values, best = merge(scores, found, DEPTH)
    documents = int(torch.isfinite(values).sum(dim=1).min())
    return values[:, :documents], best[:, :documents]


def _side_by_side(own: Tensor, device: torch.device, group: Any) -> Tensor:
    """[Q, k] of each rank to [Q, ranks * k]."""
    gathered = gather_rows(own.to(device), group).cpu()
    return torch.cat(gathered.split(len(own)), dim=1)


def _gather_items(indices: Tensor, rows: Tensor, device: torch.device, group: Any) -> tuple[Tensor, Tensor]:
    """Items <int64>[n] of all ranks, ascending and each once, with their embeddings <float32>[n, D]."""
    return _distinct(gather_rows(indices.to(device), group).cpu(), gather_rows(rows.to(device), group).cpu())


def _distinct(indices: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    unique, places = np.unique(indices.numpy(), return_index=True)
    return torch.from_numpy(unique), rows[torch.from_numpy(places)]


def pair_loss(
    queries: Tensor, documents: Tensor, rows: Tensor, relevant: Sequence[np.ndarray], temperature: float
) -> tuple[float, float]:
    """Loss and accuracy of the split's pairs, in groups of ``PAIRS_OF_A_LOSS`` in their order.

    Args:
        queries: <float32>[Q, D].
        documents: <float32>[n, D] of those that are relevant to any query.
        rows: <int64>[n] which they are, ascending.
        relevant: for each query <int64>[P] the rows of its relevant documents.
        temperature: similarities are divided by it.

    Returns:
        loss in bits a pair, and accuracy in percent.
    """
    owners = np.repeat(np.arange(len(relevant)), [len(each) for each in relevant])
    targets = np.concatenate(list(relevant)).astype(np.int64)
    positives = pad_rows(relevant, np.array([len(each) for each in relevant]), -1)
    loss, correct = 0.0, 0
    for first in range(0, len(targets), PAIRS_OF_A_LOSS):
        chosen = slice(first, first + PAIRS_OF_A_LOSS)
        ids = torch.from_numpy(np.unique(targets[chosen]))
        own = torch.from_numpy(owners[chosen])
        result = contrastive_loss(
            queries[own],
            documents[torch.searchsorted(rows, ids)],
            ids,
            torch.from_numpy(targets[chosen]),
            torch.from_numpy(positives)[own],
            temperature,
        )
        loss, correct = loss + float(result.loss), correct + int(result.correct)
    return loss / len(targets) / math.log(2), 100.0 * correct / len(targets)


def validation_metrics(
    indices: Tensor, rows: Tensor, target: Target, device: torch.device, group: Any
) -> dict[str, float]:
    """Measure a split. All ranks must call it, each with the items that it embedded.

    Args:
        indices: <int64>[n] this rank's items, ascending; those below Q are queries.
        rows: <float32>[n, D] their embeddings, on the CPU.
        target: what to find.
        device: that the group's backend works on.
        group: torch's process group, or None.

    Returns:
        ``METRICS`` by name: the loss in bits, the others in percent; the same on every rank.
    """
    count = len(target.query_ids)
    are_queries = indices < count
    _, queries = _gather_items(indices[are_queries], rows[are_queries], device, group)
    own, documents = indices[~are_queries] - count, rows[~are_queries]
    scores, found = retrieve(own, documents, queries, device, group)
    run = {
        query: {target.document_ids[row]: score for row, score in zip(*best)}
        for query, *best in zip(target.query_ids, found.tolist(), scores.tolist())
    }
    measured = measure(target.judgments, run, VALIDATION_MEASURES.values())
    judged = torch.isin(own, torch.from_numpy(np.concatenate(list(target.relevant)).astype(np.int64)))
    relevant_rows, relevant = _gather_items(own[judged], documents[judged], device, group)
    loss, accuracy = pair_loss(queries, relevant, relevant_rows, target.relevant, target.temperature)
    named = {name: measured[measure_name] for name, measure_name in VALIDATION_MEASURES.items()}
    return {"loss": loss, "accuracy": accuracy, **named}
