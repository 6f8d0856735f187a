"""The contrastive loss of queries against the documents of all ranks; relevant ones are never taken for negatives."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """Concatenate the rows of all ranks, in the order of the ranks; gradients go back to the rank of each row.

    All ranks must call it at the same point, and so must their backward passes.

    Args:
        rows: <float or int64>[n, ...], equal in all but n over the ranks, on the device of the group's backend.
        group: torch's process group; None in a run that is not distributed.

    Returns:
        [sum of n, ...]; the rows themselves on a single rank.
    """
    ranks = 1 if group is None or not dist.is_initialized() else dist.get_world_size(group)
    if ranks == 1:
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(sizes, own, group=group)
    most = max(map(int, sizes))
    if not most:
        return rows
    # Padded at its end: torch gathers what has one shape.
    padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, most - len(rows)))
    return torch.cat([part[: int(size)] for part, size in zip(all_gather(padded.contiguous(), group), sizes)])


def candidate_mask(document_ids: Tensor, targets: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Find the documents that each query chooses among; arguments as in ``contrastive_loss``.

    A document that occurs several times, from several queries or ranks, is one candidate. Documents that are known to
    be relevant to the query are none, apart from its target.

    Returns:
        <bool>[Q, C], True at candidates, and <int64>[Q] the column of each target.
    """
    places = torch.arange(len(document_ids), device=document_ids.device)
    _, group = document_ids.unique(return_inverse=True)
    first = (torch.full_like(places, len(places)).scatter_reduce(0, group, places, "amin")[group] == places)[None, :]
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the cross-entropy of each query's document among the candidates (van den Oord et al., 2018, equation 4).

    Args:
        queries: <float>[Q, D].
        documents: <float>[C, D] of this batch, those of other ranks among them.
        document_ids: <int64>[C] which documents they are.
        targets: <int64>[Q] the relevant document of each query, one of ``document_ids``.
        positives: <int64>[Q, P] all documents known to be relevant to each, filled up with -1.
        temperature: similarities are divided by it; positive.

    Returns:
        the loss <float32>[] in nats, summed over queries; how many queries' documents score highest; and how many
        documents queries were compared with, their own not counted.
    """
    candidates, columns = candidate_mask(document_ids, targets, positives)
    scores = (queries.float() @ documents.float().T / temperature).masked_fill(~candidates, float("-inf"))
    loss = F.cross_entropy(scores, columns, reduction="sum")
    return loss, (scores.argmax(dim=1) == columns).sum(), candidates.sum() - len(targets)
