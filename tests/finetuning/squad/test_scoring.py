"""SQuAD's metrics against cases worked out by hand and against the walk written out step by step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.squad.scoring import (
    f1_score,
    metric_names,
    normalize_answer,
    raw_scores,
    right_texts,
    score_predictions,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's,\ta-b!", "cats ab"),
        ("An apple a day", "apple day"),
        ("the", ""),
        ("A.", ""),
        ("another theatre", "another theatre"),
        # Punctuation goes first: an article that loses its full stop is an article, one that grows is none.
        ("a.b the.", "ab"),
        # Only ASCII's punctuation is punctuation.
        ("\u00abTour\u00bb \u2013 12\u00a0km", "\u00abtour\u00bb \u2013 12 km"),
        ("$5,000.00", "500000"),
    ],
)
def test_normalization(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        ("quick brown fox", "brown fox jumps", 2 / 3),
        ("x y y", "y y y", 2 / 3),  # two common words, of three and three
        ("x", "x y z", 0.5),  # precision 1/3, recall 1
        ("x", "y", 0.0),
        ("", "", 1.0),
        ("", "x", 0.0),
        ("x", "", 0.0),
    ],
)
def test_f1(gold, predicted, expected):
    assert f1_score(gold, predicted) == pytest.approx(expected, abs=1e-15)


def test_answers_that_normalize_to_nothing_expect_no_answer_but_count_as_answered():
    assert right_texts(["the", "A!"], "2.0") == right_texts([], "2.0") == ("",)
    assert right_texts(["the", "cat"], "2.0") == ("cat",)
    assert raw_scores([["the"], []], ["", ""], "2.0").has_answer.tolist() == [True, False]


# Four questions: two right ones, one that has no answer, one wrong.
ANSWERS = {"one": ["red fox"], "two": [], "three": ["blue sea"], "four": ["night"]}
PREDICTIONS = {"one": "the red fox", "two": "a cow", "three": "sea", "four": "Night"}


def test_metrics_of_version_2_without_odds():
    assert score_predictions(ANSWERS, "2.0", PREDICTIONS) == pytest.approx(
        {
            "exact": 50.0,
            "f1": 100 * (1 + 0 + 2 / 3 + 1) / 4,
            "total": 4,
            "HasAns_exact": 200 / 3,
            "HasAns_f1": 100 * (1 + 2 / 3 + 1) / 3,
            "HasAns_total": 3,
            "NoAns_exact": 0.0,
            "NoAns_f1": 0.0,
            "NoAns_total": 1,
        }
    )


def test_walk_of_the_threshold():
    # Exact from 1 (no answers at all): one +1 = 2, two -1 = 1, three 0, four +1 = 2 again, which is not better.
    # F1: 1, 2, 1, 5/3, 8/3 at four's odds.
    odds = {"one": -2.0, "two": -1.0, "three": 0.0, "four": 3.0}
    metrics = score_predictions(ANSWERS, "2.0", PREDICTIONS, odds, threshold=-1.5)
    # Only the first question is answered: its text is right, and so is "no answer" to the second.
    assert metrics["exact"] == metrics["f1"] == 50.0
    assert metrics["NoAns_exact"] == 100.0 and metrics["HasAns_exact"] == pytest.approx(100 / 3)
    assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (50.0, -2.0)
    assert (metrics["best_f1"], metrics["best_f1_thresh"]) == (pytest.approx(100 * (8 / 3) / 4), 3.0)


@pytest.mark.parametrize(
    ("answers", "predictions", "odds", "expected"),
    [
        # Version 1.1: the best of several answers counts; two texts without words have nothing in common.
        ({"q": ["the red fox", "a fox"]}, {"q": "Fox."}, None, {"exact": 100.0, "f1": 100.0, "total": 1}),
        ({"q": ["the"]}, {"q": "a"}, None, {"exact": 100.0, "f1": 0.0, "total": 1}),
        # No answer at all may be best, and its threshold is 0.
        ({"q": []}, {"q": "cow"}, {"q": -3.0}, {"best_f1": 100.0, "best_f1_thresh": 0.0}),
        # The empty prediction of a question without an answer loses nothing on the walk.
        ({"p": [], "q": ["cow"]}, {"p": "", "q": "cow"}, {"p": 0.0, "q": 1.0},
         {"best_exact": 100.0, "best_exact_thresh": 1.0}),
        # Equal odds are walked in the order of their file.
        ({"p": ["cow"], "q": []}, {"p": "cow", "q": "cow"}, {"p": 0.5, "q": 0.5}, {"best_exact": 100.0}),
        ({"p": ["cow"], "q": []}, {"p": "cow", "q": "cow"}, {"q": 0.5, "p": 0.5}, {"best_exact": 50.0}),
        # The threshold, 1, must be exceeded.
        ({"q": ["cow"]}, {"q": "cow"}, {"q": 1.0}, {"exact": 100.0}),
        ({"q": ["cow"]}, {"q": "cow"}, {"q": 1.001}, {"exact": 0.0}),
    ],
)  # fmt: skip
def test_metrics_by_hand(answers, predictions, odds, expected):
    metrics = score_predictions(answers, "1.1" if odds is None else "2.0", predictions, odds)
    assert {name: metrics[name] for name in expected} == expected
    assert odds is not None or metrics == expected


def test_parts_without_questions_are_left_out():
    assert not any(name.startswith("NoAns") for name in score_predictions({"q": ["x"]}, "2.0", {"q": "x"}))
    assert metric_names("2.0", [True]) == [
        *("exact", "f1", "HasAns_exact", "HasAns_f1"),
        *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    ]
    assert metric_names("1.1", [True]) == ["exact", "f1"]


def test_missing_and_surplus_predictions(caplog):
    with pytest.raises(ValueError, match="1 of 1 questions have no prediction .the first has the id 'q'"):
        score_predictions({"q": ["x"]}, "2.0", {})
    with pytest.raises(ValueError, match="1 of 1 questions are missing from the --null-odds file"):
        score_predictions({"q": ["x"]}, "2.0", {"q": "x"}, {})
    metrics = score_predictions({"p": ["x"], "q": ["the"]}, "1.1", {"p": "x", "r": "x"})
    assert metrics == {"exact": 50.0, "f1": 50.0, "total": 2}
    missing, surplus = caplog.messages
    assert missing.endswith("(the first has the id 'q'): they score 0") and "belong to no question" in surplus


# Properties

TEXTS = st.sampled_from(["", "the", "red", "red fox", "The red, red fox", "blue sea", "sea", "a 5%"])
CASES = st.lists(
    st.tuples(st.lists(TEXTS, max_size=3), TEXTS, st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0])), min_size=1, max_size=9
)


def scored(cases):
    names = [str(number) for number in range(len(cases))]
    return score_predictions(
        {name: answers for name, (answers, _, _) in zip(names, cases)},
        "2.0",
        {name: text for name, (_, text, _) in zip(names, cases)},
        {name: odds for name, (_, _, odds) in zip(names, cases)},
    )


@given(CASES)
@settings(max_examples=200)
def test_walk_against_one_step_at_a_time(cases):
    raw = raw_scores([answers for answers, _, _ in cases], [text for _, text, _ in cases], "2.0")
    score = best = sum(not answers for answers, _, _ in cases)
    threshold = 0.0
    for number in sorted(range(len(cases)), key=lambda number: cases[number][2]):
        answers, text, odds = cases[number]
        if answers:
            score += raw.f1[number]
        elif text:
            score -= 1
        if score > best:
            best, threshold = score, odds
    metrics = scored(cases)
    assert metrics["best_f1"] == 100.0 * best / len(cases)
    assert metrics["best_f1_thresh"] == threshold
