"""The contrastive loss of queries against documents, with what is known to be relevant never taken for a negative."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class ContrastiveLoss(NamedTuple):
    """Sums over queries.

    Attributes:
        loss: <float32>[] in nats.
        correct: <int64>[] queries whose document scores highest.
        negatives: <int64>[] documents that queries were compared with, their own not counted.
    """

    loss: Tensor
    correct: Tensor
    negatives: Tensor


def first_of_each(document_ids: Tensor) -> Tensor:
    """<bool>[C], True where a document stands in <int64>[C] for the first time."""
    places = torch.arange(len(document_ids), device=document_ids.device)
    _, group = document_ids.unique(return_inverse=True)
    first = torch.full_like(places, len(places)).scatter_reduce(0, group, places, "amin")
    return first[group] == places


def candidate_mask(document_ids: Tensor, targets: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Which documents each query chooses among.

    A document that occurs several times, from several queries or ranks, is one candidate. Documents that are known to
    be relevant to the query are none, apart from its target.

    Args:
        document_ids: <int64>[C].
        targets: <int64>[Q] the relevant document of each query, one of ``document_ids``.
        positives: <int64>[Q, P] all documents known to be relevant to each, filled up with -1.

    Returns:
        <bool>[Q, C], True at candidates, and <int64>[Q] the column of each target.
    """
    first = first_of_each(document_ids)[None, :]
    is_target = (document_ids[None, :] == targets[:, None]) & first
    relevant = (document_ids[None, :, None] == positives[:, None, :]).any(dim=2)
    return (first & ~relevant) | is_target, is_target.int().argmax(dim=1)


def contrastive_loss(
    queries: Tensor,
    documents: Tensor,
    document_ids: Tensor,
    targets: Tensor,
    positives: Tensor,
    temperature: float,
) -> ContrastiveLoss:
    """Cross-entropy of each query's document among the candidates (van den Oord et al., 2018, equation 4).

    Args:
        queries: <float>[Q, D].
        documents: <float>[C, D] of this batch, those of other ranks among them.
        document_ids: <int64>[C] which documents they are.
        targets: <int64>[Q] the relevant document of each query.
        positives: <int64>[Q, P] all documents known to be relevant to each, filled up with -1.
        temperature: similarities are divided by it; positive.
    """
    candidates, columns = candidate_mask(document_ids, targets, positives)
    scores = (queries.float() @ documents.float().T / temperature).masked_fill(~candidates, float("-inf"))
    return ContrastiveLoss(
        F.cross_entropy(scores, columns, reduction="sum"),
        (scores.argmax(dim=1) == columns).sum(),
        candidates.sum() - len(targets),
    )
