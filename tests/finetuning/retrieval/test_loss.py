"""The contrastive loss compared with a plain loop, the documents in its denominator, and rows of several ranks."""

import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.retrieval.loss import candidate_mask, contrastive_loss, gather_rows


def plain_loss(queries, documents, ids, targets, positives, temperature):
    """Query by query, document by document, with dictionaries."""
    loss, correct, negatives = 0.0, 0, 0
    for query, target, relevant in zip(queries, targets, positives):
        scores = {}
        for identifier, document in zip(ids, documents):
            if identifier not in scores and (identifier == target or identifier not in relevant):
                scores[identifier] = sum(a * b for a, b in zip(query, document)) / temperature
        highest = max(scores.values())
        logarithm = highest + math.log(sum(math.exp(score - highest) for score in scores.values()))
        loss += logarithm - scores[target]
        correct += scores[target] == highest
        negatives += len(scores) - 1
    return loss, correct, negatives


def test_relevant_documents_and_repetitions_are_no_negatives():
    # Query 0 has the relevant documents 4 and 5; document 6 is in the batch twice.
    ids, targets = torch.tensor([4, 5, 6, 6]), torch.tensor([4, 6])
    candidates, columns = candidate_mask(ids, targets, torch.tensor([[4, 5], [6, -1]]))
    assert candidates.tolist() == [[True, False, True, False], [True, True, True, False]]
    assert columns.tolist() == [0, 2]


def test_a_query_alone_has_nothing_to_learn():
    one = torch.ones(1, 3, requires_grad=True)
    loss, _, negatives = contrastive_loss(one, one, torch.tensor([3]), torch.tensor([3]), torch.tensor([[3]]), 0.05)
    assert float(loss.detach()) == 0.0 and int(negatives) == 0


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 6), st.sampled_from([0.05, 1.0]))
def test_equals_the_plain_loop(seed, queries, more_documents, temperature):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 8, queries)
    ids = np.concatenate([targets, generator.integers(0, 8, more_documents)])
    positives = np.stack([targets, generator.integers(-1, 8, queries)], axis=1)
    # A document is the same wherever it stands.
    vectors = [generator.normal(size=(queries, 3)), generator.normal(size=(8, 3))[ids]]
    given_values = [*vectors, ids, targets, positives]
    loss, *counts = contrastive_loss(*map(torch.tensor, given_values), temperature)
    expected, *expected_counts = plain_loss(*(each.tolist() for each in given_values), temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert list(map(int, counts)) == expected_counts


# Queries and documents of each rank: unequal numbers, and a last rank whose batch is to be ignored.
SHARES = ((2, 4), (1, 1), (0, 0))
POSITIVES = torch.tensor([[0, 3], [1, -1], [4, -1]])


def inputs() -> list[torch.Tensor]:
    """Three queries and five documents, D = 3, in double precision."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, 3, generator=generator, dtype=torch.float64) for count in (3, 5)]


def loss_of(queries: torch.Tensor, documents: torch.Tensor, ids: torch.Tensor, first: int) -> torch.Tensor:
    own = slice(first, first + len(queries))
    if not len(queries):
        return 0.0 * documents.sum()
    return contrastive_loss(queries, documents, ids, POSITIVES[own, 0], POSITIVES[own], 0.5)[0]


def work(rank: int, port: int, folder: str) -> None:
    """One rank: gradients of this rank's rows, from the losses of all ranks."""
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
