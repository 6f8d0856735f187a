"""The contrastive loss of queries over the documents of all ranks; relevant documents are never negatives."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """Concatenate the rows of all ranks; gradients flow back to the rank of each row.

    All ranks must call it together, and run the backward pass together.

    Args:
        rows: <float or int64>[n, ...] on the device of the group's backend; only n may differ between ranks.
        group: torch's process group; None in a run that is not distributed.

    Returns:
        [sum of n, ...] in the order of the ranks.
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
    # Padded, because torch gathers only tensors of equal shape.
    padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, most - len(rows)))
    return torch.cat([part[: int(size)] for part, size in zip(all_gather(padded.contiguous(), group), sizes)])


def candidate_mask(document_ids: Tensor, targets: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Find the candidate documents of each query; arguments as in ``contrastive_loss``.

    Each document is a candidate once, however many queries and ranks it comes from. Of the documents that are relevant
    to the query only its target is a candidate.

    Returns:
        <bool>[Q, C], True at candidates, and <int64>[Q], the column of each target.
    """
    # torch.unique would wait for a GPU.
    ordered, places = document_ids.sort(stable=True)
    is_first = F.pad(ordered[1:] != ordered[:-1], (1, 0), value=True)
    first = torch.empty_like(is_first).index_copy(0, places, is_first)[None, :]
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
        documents: <float>[C, D] of all ranks.
        document_ids: <int64>[C] their ids.
        targets: <int64>[Q] the id of each query's document, one of ``document_ids``.
        positives: <int64>[Q, P] the ids of all documents that are relevant to each query, padded with -1.
        temperature: positive divisor of the similarities.

    Returns:
        the loss <float32>[] in nats, summed over queries; the number of queries whose document scores highest; and the
        number of negatives, summed over queries.
    """
    candidates, columns = candidate_mask(document_ids, targets, positives)
    scores = (queries.float() @ documents.float().T / temperature).masked_fill(~candidates, float("-inf"))
    loss = F.cross_entropy(scores, columns, reduction="sum")
    return loss, (scores.argmax(dim=1) == columns).sum(), candidates.sum() - len(targets)
