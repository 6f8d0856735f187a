"""The contrastive loss against a plain loop, and what may stand in its denominator."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.retrieval.loss import candidate_mask, contrastive_loss, first_of_each


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


def test_by_hand():
    # Similarities of the one query: 2 with its document, 1 and 0 with the two others.
    result = contrastive_loss(
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[2.0, 0.0], [1.0, 5.0], [0.0, 1.0]]),
        torch.tensor([7, 8, 9]),
        torch.tensor([7]),
        torch.tensor([[7]]),
        temperature=1.0,
    )
    assert float(result.loss) == pytest.approx(math.log(math.exp(2) + math.exp(1) + 1) - 2)
    assert (int(result.correct), int(result.negatives)) == (1, 2)


def test_relevant_documents_and_repetitions_are_no_negatives():
    # Query 0 has the relevant documents 4 and 5; document 6 stands in the batch twice.
    ids, targets = torch.tensor([4, 5, 6, 6]), torch.tensor([4, 6])
    candidates, columns = candidate_mask(ids, targets, torch.tensor([[4, 5], [6, -1]]))
    assert candidates.tolist() == [[True, False, True, False], [True, True, True, False]]
    assert columns.tolist() == [0, 2]


def test_a_query_alone_has_nothing_to_learn():
    one = torch.ones(1, 3, requires_grad=True)
    result = contrastive_loss(one, one, torch.tensor([3]), torch.tensor([3]), torch.tensor([[3]]), 0.05)
    assert float(result.loss.detach()) == 0.0 and int(result.negatives) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_first_of_each(identifiers):
    expected = [identifier not in identifiers[:place] for place, identifier in enumerate(identifiers)]
    assert first_of_each(torch.tensor(identifiers)).tolist() == expected


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 6), st.sampled_from([0.05, 1.0]))
def test_equals_the_plain_loop(seed, queries, more_documents, temperature):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 8, queries)
    ids = np.concatenate([targets, generator.integers(0, 8, more_documents)])
    positives = np.stack([targets, generator.integers(-1, 8, queries)], axis=1)
    vectors = [generator.normal(size=(count, 3)) for count in (queries, len(ids))]
    # A document is the same wherever it stands.
    for identifier in np.unique(ids):
        vectors[1][ids == identifier] = vectors[1][ids == identifier][0]
    result = contrastive_loss(
        *(torch.tensor(each) for each in vectors),
        *(torch.tensor(each) for each in (ids, targets, positives)),
        temperature,
    )
    loss, correct, negatives = plain_loss(
        *(each.tolist() for each in vectors), ids.tolist(), targets.tolist(), positives.tolist(), temperature
    )
    assert float(result.loss) == pytest.approx(loss, rel=1e-4, abs=1e-4)
    assert (int(result.correct), int(result.negatives)) == (correct, negatives)
