"""Metrics of validation against a search through everything by hand."""

import math

import numpy as np
import pytest
import torch

from fairseq_maelm.finetuning.retrieval import validation
from fairseq_maelm.finetuning.retrieval.measures import VALIDATION_MEASURES, measure
from fairseq_maelm.finetuning.retrieval.validation import EmbeddingStore, Target, validation_metrics

pytest.importorskip("ir_measures")

CPU = torch.device("cpu")


def target_of(relevant, documents):
    query_ids = [f"q{number}" for number in range(len(relevant))]
    document_ids = [f"d{number}" for number in range(documents)]
    judgments = {query: {f"d{row}": 1 for row in rows} for query, rows in zip(query_ids, relevant)}
    return Target([np.array(rows) for rows in relevant], judgments, query_ids, document_ids, temperature=0.5)


def test_by_hand():
    # Query 0 finds its document 1 second, after 0; query 1 finds its documents 2 and 0 first and last.
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    documents = torch.tensor([[1.0, -1.0], [0.5, 0.0], [0.0, 1.0]])
    result = validation_metrics(
        torch.arange(5), torch.cat([queries, documents]), target_of([[1], [0, 2]], 3), CPU, None
    )
    ideal = 1 + 1 / math.log2(3)
    assert result["mrr10"] == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert result["recall100"] == pytest.approx(100)
    assert result["ndcg10"] == pytest.approx(100 * (1 / math.log2(3) + (1 + 1 / math.log2(4)) / ideal) / 2)
    # Three pairs in one group: query 0 chooses among 1, 0 and 2; query 1 among one of its documents and 1.
    first = math.log(1 + math.exp(1) + math.exp(-1))
    zero = math.log(1 + math.exp(2))
    two = math.log(1 + math.exp(-2))
    assert result["loss"] == pytest.approx((first + zero + two) / 3 / math.log(2), rel=1e-5)
    assert result["accuracy"] == pytest.approx(100 / 3)


def test_many_texts_in_any_order_and_repeated(monkeypatch):
    monkeypatch.setattr(validation, "_BLOCK", 7)
    generator = np.random.default_rng(0)
    rows = torch.from_numpy(generator.normal(size=(20 + 150, 8)).astype(np.float32))
    relevant = [sorted(generator.choice(150, generator.integers(1, 4), replace=False).tolist()) for _ in range(20)]
    store, order = EmbeddingStore(), generator.permutation(170)
    for batch in [*np.array_split(order, 9), order[:30]]:
        store.add(torch.from_numpy(batch), rows[torch.from_numpy(batch)])
    target = target_of(relevant, 150)
    result = validation_metrics(*store.take(), target, CPU, None)
    scores = (rows[:20] @ rows[20:].T).tolist()
    run = {f"q{query}": {f"d{row}": score for row, score in enumerate(line)} for query, line in enumerate(scores)}
    expected = measure(target.judgments, run, VALIDATION_MEASURES.values())
    assert {name: result[name] for name in VALIDATION_MEASURES} == pytest.approx(
        {name: expected[each] for name, each in VALIDATION_MEASURES.items()}
    )
    assert set(result) == set(validation.METRICS)
