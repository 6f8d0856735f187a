"""Measures worked out by hand, and metrics of validation compared with a search of all documents."""

import math

import numpy as np
import pytest
import torch

from fairseq_maelm.finetuning.retrieval import validation
from fairseq_maelm.finetuning.retrieval.datasets import Target
from fairseq_maelm.finetuning.retrieval.measures import VALIDATION_MEASURES, measure
from fairseq_maelm.finetuning.retrieval.validation import validation_metrics

pytest.importorskip("ir_measures")

CPU = torch.device("cpu")
JUDGED = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1}}
NAMES = ("nDCG@10", "R@100", "RR@10")


def test_measures_by_hand():
    # q1: b is second, a is third. q2: c is first.
    run = {"q1": {"x": 0.9, "b": 0.5, "a": 0.1}, "q2": {"c": 1.0}}
    gain = 2 / math.log2(3) + 1 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    values = measure(JUDGED, run, NAMES)
    assert values["nDCG@10"] == pytest.approx(100 * (gain / ideal + 1) / 2)
    assert values["R@100"] == pytest.approx(100)
    assert values["RR@10"] == pytest.approx(100 * (1 / 2 + 1) / 2)


def test_cut_offs():
    run = {"q1": {f"x{number}": 200.0 - number for number in range(99)} | {"a": 50.0, "b": 40.0}, "q2": {}}
    values = measure(JUDGED, run, NAMES)
    assert values["nDCG@10"] == values["RR@10"] == 0.0, "nothing relevant among the first ten"
    assert values["R@100"] == pytest.approx(100 * (1 / 2) / 2), "a is the hundredth, b comes after it"


def test_a_query_without_result_counts_as_zero_and_one_without_judgment_does_not_count():
    values = measure(JUDGED, {"q2": {"c": 1.0}, "q9": {"x": 1.0}}, NAMES)
    assert values == pytest.approx(dict.fromkeys(NAMES, 50.0))
    assert measure(JUDGED, {"q9": {"x": 1.0}}, NAMES) == dict.fromkeys(NAMES, 0.0)


@pytest.mark.parametrize(
    ("judged", "name", "message"),
    [
        (JUDGED, "nonsense", "there is no measure 'nonsense'"),
        (JUDGED, "nDCG@", "there is no measure 'nDCG@'"),
        ({}, "nDCG@10", "no judgments"),
    ],
)
def test_what_cannot_be_measured(judged, name, message):
    with pytest.raises(ValueError, match=message):
        measure(judged, {"q1": {"a": 1.0}}, [name])


def target_of(relevant, documents):
    query_ids = [f"q{number}" for number in range(len(relevant))]
    document_ids = [f"d{number}" for number in range(documents)]
    judgments = {query: {f"d{row}": 1 for row in rows} for query, rows in zip(query_ids, relevant)}
    return Target([np.array(rows) for rows in relevant], judgments, query_ids, document_ids)


def test_validation_by_hand():
    # Query 0 finds its document 1 second, after 0; query 1 finds its documents 2 and 0 first and last.
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    documents = torch.tensor([[1.0, -1.0], [0.5, 0.0], [0.0, 1.0]])
    target = target_of([[1], [0, 2]], 3)
    result = validation_metrics([(torch.arange(5), torch.cat([queries, documents]))], target, 0.5, CPU, None)
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
    order = torch.from_numpy(generator.permutation(170))
    batches = [(batch, rows[batch]) for batch in [*order.split(20), order[:30]]]
    target = target_of(relevant, 150)
    result = validation_metrics(batches, target, 0.5, CPU, None)
    scores = (rows[:20] @ rows[20:].T).tolist()
    run = {f"q{query}": {f"d{row}": score for row, score in enumerate(line)} for query, line in enumerate(scores)}
    expected = measure(target.judgments, run, VALIDATION_MEASURES.values())
    assert {name: result[name] for name in VALIDATION_MEASURES} == pytest.approx(
        {name: expected[each] for name, each in VALIDATION_MEASURES.items()}
    )
    assert set(result) == set(validation.METRICS)
