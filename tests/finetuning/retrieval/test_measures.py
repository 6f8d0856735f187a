"""Measures of cases worked out by hand."""

import math

import pytest

from fairseq_maelm.finetuning.retrieval.measures import measure

pytest.importorskip("ir_measures")

JUDGED = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1}}
NAMES = ("nDCG@10", "R@100", "RR@10")


def test_by_hand():
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


@pytest.mark.parametrize("name", ["nonsense", "nDCG@"])
def test_unknown_measures_are_refused(name):
    with pytest.raises(ValueError, match="there is no measure"):
        measure(JUDGED, {}, [name])


def test_nothing_to_measure_against():
    with pytest.raises(ValueError, match="no judgments"):
        measure({}, {"q1": {"a": 1.0}}, NAMES)
