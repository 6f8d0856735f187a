"""Odds of no answer, their threshold and the predictions must belong together, whatever is left to defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm import cli

# id: right answer, best text, logits, probability. The second question's logits lie between both defaults, 0 and 1.
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
    written: dict[str, Any] = {
        "dev": {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]},
        "best_texts": {name: best for name, (_, best, _, _) in QUESTIONS.items()},
        "predictions": {name: "" if odds > 0 else best for name, (_, best, odds, _) in QUESTIONS.items()},
        "null_odds": {name: odds for name, (_, _, odds, _) in QUESTIONS.items()},
        "renamed": {name: odds for name, (_, _, odds, _) in QUESTIONS.items()},
        "probabilities": {name: probability for name, (_, _, _, probability) in QUESTIONS.items()},
    }
    for name, content in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def words(files: Path, predictions: str, odds: str = "", *options: object) -> list[str]:
    given = ["--null-odds", files / f"{odds}.json"] if odds else []
    named = [files / "dev.json", files / f"{predictions}.json"]
    return [str(word) for word in ("evaluate", "squad", *named, *given, *options)]


@pytest.fixture
def score(files: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Score by the command, and return the metrics."""

    def scored(predictions: str, odds: str = "", *options: str) -> dict[str, float]:
        cli.main(words(files, predictions, odds, *options, "--json"))
        found: dict[str, float] = json.loads(capsys.readouterr().out)
        return found

    return scored


@pytest.mark.parametrize("odds", ["null_odds", "renamed"])
def test_logits_have_the_threshold_of_predict(score: Any, odds: str) -> None:
    metrics = score("best_texts", odds)
    assert metrics["exact"] == metrics["best_exact"] == 100.0
    assert metrics["best_exact_thresh"] == -0.5
    assert score("predictions") == {name: value for name, value in metrics.items() if not name.startswith("best")}
    assert score("best_texts", odds, "--threshold", "1")["exact"] == 75.0


def test_small_logits_are_known_by_their_name(files: Path, score: Any) -> None:
    (files / "null_odds.json").write_text(json.dumps({"a": 0.0, "b": 0.5, "c": 0.0, "d": 0.9}))
    assert score("best_texts", "null_odds")["exact"] == 100.0


def test_probabilities_have_the_official_threshold(score: Any) -> None:
    metrics = score("best_texts", "probabilities")
    assert metrics["exact"] == 50.0 and metrics["best_exact"] == 100.0
    assert metrics["best_exact_thresh"] == 0.4
    assert score("best_texts", "probabilities", "--threshold", "0.5")["exact"] == 100.0
    # As a leaderboard is given it: the probability decides nothing that the prediction has not decided.
    assert score("predictions", "probabilities")["exact"] == 100.0


def test_a_threshold_that_is_given_is_taken_with_a_warning(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Score the predictions as the official script does."""
    cli.main(words(files, "predictions", "null_odds", "--threshold", "0"))
    output = capsys.readouterr()
    assert output.out.split()[:2] == ["exact", "100.0"]
    assert "predictions.json leaves 2 questions unanswered, also for best_exact and best_f1" in output.err


def test_metrics_are_lines_in_a_new_file(files: Path) -> None:
    cli.main(words(files, "predictions", "", "--output", files / "metrics.txt"))
    assert (files / "metrics.txt").read_text().startswith("exact         100.0\nf1            100.0\ntotal         4\n")
