"""Rows of several ranks: real processes, gradients included."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fairseq_maelm.finetuning.retrieval.gather import gather_rows
from fairseq_maelm.finetuning.retrieval.loss import contrastive_loss

# Queries and documents of each rank: unequal numbers, and a last rank whose batch is to be ignored.
SHARES = ((2, 4), (1, 1), (0, 0))
POSITIVES = torch.tensor([[0, 3], [1, -1], [4, -1]])


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Three queries and five documents, D = 3, in double precision."""
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(3, 3, generator=generator, dtype=torch.float64),
        torch.randn(5, 3, generator=generator, dtype=torch.float64),
    )


def loss_of(queries: torch.Tensor, documents: torch.Tensor, ids: torch.Tensor, first: int) -> torch.Tensor:
    own = slice(first, first + len(queries))
    if not len(queries):
        return 0.0 * documents.sum()
    return contrastive_loss(queries, documents, ids, POSITIVES[own, 0], POSITIVES[own], 0.5).loss


def work(rank: int, port: int, folder: str) -> None:
    """One rank: gradients of its own rows, from the losses of all ranks."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(SHARES))
    firsts = [sum(share[kind] for share in SHARES[:rank]) for kind in (0, 1)]
    queries, documents = (
        whole[first : first + count].clone().requires_grad_()
        for whole, first, count in zip(inputs(), firsts, SHARES[rank])
    )
    ids = torch.arange(firsts[1], firsts[1] + SHARES[rank][1])
    gathered, all_ids = gather_rows(documents, dist.group.WORLD), gather_rows(ids, dist.group.WORLD)
    loss_of(queries, gathered, all_ids, firsts[0]).backward()
    torch.save((gathered.detach(), all_ids, queries.grad, documents.grad), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_gradients_of_three_ranks_are_those_of_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=len(SHARES))
    results: list[Any] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(SHARES))]
    queries, documents = (each.requires_grad_() for each in inputs())
    loss_of(queries, documents, torch.arange(5), 0).backward()
    for gathered, ids, _, _ in results:
        assert torch.equal(gathered, documents.detach()) and ids.tolist() == list(range(5))
    torch.testing.assert_close(torch.cat([result[2] for result in results if result[2] is not None]), queries.grad)
    torch.testing.assert_close(torch.cat([result[3] for result in results]), documents.grad)


def test_one_process_keeps_its_rows():
    rows = torch.ones(2, 3, requires_grad=True)
    assert gather_rows(rows, None) is rows
