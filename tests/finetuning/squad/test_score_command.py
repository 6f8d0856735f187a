"""Odds of no answer, their threshold and the predictions must belong together, whatever is left to defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm import cli

# id: right answer, best text, log-odds, probability. The second question's log-odds lie between both defaults, 0 and 1.
QUESTIONS: dict[str, tuple[str, str, float, float]] = {
    "a": ("cow", "cow", -3.0, 0.05),
    "b": ("", "sheep", 0.5, 0.6),
    "c": ("goat", "goat", -0.5, 0.4),
    "d": ("", "hen", 4.0, 0.98),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    context = "A cow, a sheep, a goat and a hen."
    qas = [
        {
            "id": name,
            "question": "Which?",
            "is_impossible": not right,
            "answers": [{"text": right, "answer_start": context.index(right)}] if right else [],
        }
        for name, (right, *_) in QUESTIONS.items()
    ]
    dev = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}
    written: dict[str, Any] = {
        "dev": dev,
        "best_spans": {name: best for name, (_, best, _, _) in QUESTIONS.items()},
        "predictions": {name: "" if odds > 0 else best for name, (_, best, odds, _) in QUESTIONS.items()},
        "null_odds": {name: odds for name, (_, _, odds, _) in QUESTIONS.items()},
        "renamed": {name: odds for name, (_, _, odds, _) in QUESTIONS.items()},
        "probabilities": {name: probability for name, (_, _, _, probability) in QUESTIONS.items()},
    }
    for name, content in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def score(files: Path, predictions: str, odds: str = "", *options: str) -> dict[str, float]:
    words = [str(files / "dev.json"), str(files / f"{predictions}.json"), "--out-file", str(files / "scores.json")]
    words += ["--na-prob-file", str(files / f"{odds}.json")] if odds else []
    cli.main(["evaluate", "squad", *words, *options])
    scored: dict[str, float] = json.loads((files / "scores.json").read_text())
    return scored


@pytest.mark.parametrize("odds", ["null_odds", "renamed"])
def test_log_odds_have_the_threshold_of_predict_squad(files: Path, odds: str) -> None:
    metrics = score(files, "best_spans", odds)
    assert metrics["exact"] == metrics["best_exact"] == 100.0
    assert metrics["best_exact_thresh"] == -0.5
    submitted = score(files, "predictions")
    assert submitted == {name: value for name, value in metrics.items() if not name.startswith("best")}
    assert score(files, "best_spans", odds, "--na-prob-thresh", "1")["exact"] == 75.0


def test_small_log_odds_are_known_by_their_name(files: Path) -> None:
    (files / "null_odds.json").write_text(json.dumps({"a": 0.0, "b": 0.5, "c": 0.0, "d": 0.9}))
    assert score(files, "best_spans", "null_odds")["exact"] == 100.0


def test_probabilities_have_the_official_threshold(files: Path) -> None:
    metrics = score(files, "best_spans", "probabilities")
    assert metrics["exact"] == 50.0 and metrics["best_exact"] == 100.0
    assert metrics["best_exact_thresh"] == 0.4
    assert score(files, "best_spans", "probabilities", "--na-prob-thresh", "0.5")["exact"] == 100.0
    # As a leaderboard is given it: the probability decides nothing that the prediction has not decided.
    assert score(files, "predictions", "probabilities")["exact"] == 100.0


def test_what_does_not_belong_together_is_refused(files: Path) -> None:
    with pytest.raises(SystemExit, match="--na-prob-thresh -0.5 is in logits, and .*probabilities.json holds probab"):
        score(files, "best_spans", "probabilities", "--na-prob-thresh", "-0.5")
    with pytest.raises(SystemExit, match="predictions.json has 2 empty texts, so no answer is decided in it: score it"):
        score(files, "predictions", "null_odds")


def test_a_threshold_that_is_given_is_taken_with_a_warning(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the official script would score it."""
    assert score(files, "predictions", "null_odds", "--na-prob-thresh", "0")["exact"] == 100.0
    assert "predictions.json has 2 empty texts: best_exact and best_f1 cannot fill them" in capsys.readouterr().err
