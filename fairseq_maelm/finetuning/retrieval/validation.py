"""Retrieval over the whole corpus at the end of validation, from the embeddings of each rank."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.retrieval.datasets import Target
from fairseq_maelm.finetuning.retrieval.loss import contrastive_loss, gather_rows
from fairseq_maelm.finetuning.retrieval.measures import DEPTH, VALIDATION_MEASURES, measure
from fairseq_maelm.finetuning.retrieval.search import blocks_of, merge, search

# Number of pairs that share their documents as candidates in the validation loss. It does not depend on the batch
# size of training, so that losses of different runs can be compared.
PAIRS_OF_A_LOSS = 32

_BLOCK = 65_536

METRICS = ("loss", "accuracy", *VALIDATION_MEASURES)


def _distinct(indices: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort items <int64>[n] with their embeddings <float32>[n, D], and drop duplicates."""
    unique, places = np.unique(indices.numpy(), return_index=True)
    return torch.from_numpy(unique), rows[torch.from_numpy(places)]


def _gather_items(indices: Tensor, rows: Tensor, device: torch.device, group: Any) -> tuple[Tensor, Tensor]:
    """Gather items <int64>[n] of all ranks with their embeddings <float32>[n, D], ascending, without duplicates."""
    return _distinct(gather_rows(indices.to(device), group).cpu(), gather_rows(rows.to(device), group).cpu())


def _side_by_side(own: Tensor, device: torch.device, group: Any) -> Tensor:
    """Gather [Q, k] of each rank to [Q, ranks * k]."""
    return torch.cat(gather_rows(own.to(device), group).cpu().split(len(own)), dim=1)


def _retrieve(
    indices: Tensor, rows: Tensor, queries: Tensor, device: torch.device, group: Any
) -> tuple[Tensor, Tensor]:
    """Return scores <float32>[Q, k], descending, and rows <int64>[Q, k] of the best documents of all ranks.

    ``indices`` <int64>[n] are the rows of this rank's documents in the corpus, ascending, and ``rows`` <float32>[n, D]
    their embeddings. ``queries`` are <float32>[Q, D].
    """
    scores, columns = search(queries, blocks_of(rows.numpy(), _BLOCK), DEPTH)
    # A rank may have fewer than DEPTH documents.
    wide = (len(queries), DEPTH - scores.shape[1])
    scores = torch.cat([scores, scores.new_full(wide, float("-inf"))], dim=1)
    found = torch.cat([indices[columns], columns.new_full(wide, -1)], dim=1)
    values, best = merge(_side_by_side(scores, device, group), _side_by_side(found, device, group), DEPTH)
    documents = int(torch.isfinite(values).sum(dim=1).min())
    return values[:, :documents], best[:, :documents]


def _pair_loss(
    queries: Tensor, documents: Tensor, rows: Tensor, relevant: Sequence[np.ndarray], temperature: float
) -> tuple[float, float]:
    """Compute loss, in bits per pair, and accuracy of the split's pairs, in groups of ``PAIRS_OF_A_LOSS``.

    ``documents`` <float32>[n, D] are the documents that are relevant to any query, and ``rows`` <int64>[n] their rows.
    """
    counts = np.array([len(each) for each in relevant])
    owners = torch.from_numpy(np.repeat(np.arange(len(relevant)), counts))
    targets = torch.from_numpy(np.concatenate(relevant).astype(np.int64))
    positives = torch.from_numpy(pad_rows(relevant, counts, -1))
    loss, correct = 0.0, 0
    for own, target in zip(owners.split(PAIRS_OF_A_LOSS), targets.split(PAIRS_OF_A_LOSS)):
        ids = target.unique()
        candidates = documents[torch.searchsorted(rows, ids)]
        its_loss, its_correct, _ = contrastive_loss(queries[own], candidates, ids, target, positives[own], temperature)
        loss, correct = loss + float(its_loss), correct + int(its_correct)
    return loss / len(targets) / math.log(2), 100.0 * correct / len(targets)


def validation_metrics(
    batches: Sequence[tuple[Tensor, Tensor]], target: Target, temperature: float, device: torch.device, group: Any
) -> dict[str, float]:
    """Measure a split. All ranks must call it, each with the items that it embedded.

    Args:
        batches: this rank's items <int64>[B], of which those below Q are queries, and their embeddings <float32>[B, D]
            on the CPU; duplicates count once.
        target: the split's relevance judgments.
        temperature: temperature of the loss.
        device: device of the group's backend.
        group: torch's process group, or None.

    Returns:
        ``METRICS`` by name: the loss in bits, the others in percent; equal on all ranks.
    """
    indices, rows = _distinct(*(torch.cat(each) for each in zip(*batches)))
    count = len(target.query_ids)
    are_queries = indices < count
    _, queries = _gather_items(indices[are_queries], rows[are_queries], device, group)
    own, documents = indices[~are_queries] - count, rows[~are_queries]
    scores, found = _retrieve(own, documents, queries, device, group)
    run = {
        query: {target.document_ids[row]: score for row, score in zip(*best)}
        for query, *best in zip(target.query_ids, found.tolist(), scores.tolist())
    }
    measured = measure(target.judgments, run, VALIDATION_MEASURES.values())
    judged = torch.isin(own, torch.from_numpy(np.concatenate(target.relevant).astype(np.int64)))
    relevant_rows, relevant = _gather_items(own[judged], documents[judged], device, group)
    loss, accuracy = _pair_loss(queries, relevant, relevant_rows, target.relevant, temperature)
    return {"loss": loss, "accuracy": accuracy, **dict(zip(VALIDATION_MEASURES, measured.values()))}
