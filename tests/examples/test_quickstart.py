"""The quickstart: logs into a summary, resumed runs; and all at once."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end.toy import run

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
# The example's modules are in its script's folder and in no package.
sys.path.insert(0, str(QUICKSTART))

import quickstart  # noqa: E402
import texts  # noqa: E402


def log_line(kind: str, metrics: dict[str, Any]) -> str:
    """A line of metrics as fairseq writes it."""
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(metrics)}\n"


def write_training_logs(logs: Path) -> None:
    """Write logs of a pretraining that was interrupted after 30 updates and resumed from 10, and of four tunings."""
    logs.mkdir()
    lines = ["$ the command\n", "not a record\n"]
    for update, accuracy in ((10, 5), (20, 10), (30, 15), (20, 11), (30, 16), (40, 21)):
        lines.append(log_line("train_inner", {"num_updates": str(update), "loss": "9.5", "accuracy": str(accuracy)}))
    lines.append(log_line("valid", {"valid_num_updates": "40", "valid_loss": "9.1", "valid_accuracy": "20.5"}))
    lines.append('| INFO | valid | {"cut off')
    (logs / "pretrained.log").write_text("".join(lines), encoding="utf-8")
    for start, best in (("pretrained", 80.0), ("random", 60.0)):
        for seed in (1, 2):
            records = [
                log_line("valid", {"valid_num_updates": str(update), "valid_accuracy": str(best - 10 + update + seed)})
                for update in (4, 8)
            ]
            (logs / f"fine_tuning_{start}_{seed}.log").write_text("".join(records), encoding="utf-8")


RESULTS: dict[str, Any] = {
    "text": {"characters": 2_500_000, "documents": 1234},
    "data": {
        "tokens": {"train": 600_000, "valid": 20_000},
        "words": ["a", "b", "c", "d"],
        "counting": {"all words": 35.5, "the nearest words": 55.5},
    },
    "random": {"accuracy": 0.5, "perplexity": 8123.4, "minutes": 0.5},
    "pretrained": {"accuracy": 20.5, "perplexity": 152.3, "minutes": 3.0},
    **{f"fine_tuning_pretrained_{seed}": {"accuracy": 78.0 + seed} for seed in (1, 2)},
    **{f"fine_tuning_random_{seed}": {"accuracy": 58.0 + seed} for seed in (1, 2)},
    "masks": {"filled": [{"text": "a <mask>", "masks": [[{"token": "word", "probability": 0.25}]]}]},
}


def test_a_resumed_runs_last_values_count(tmp_path: Path) -> None:
    write_training_logs(tmp_path / "logs")
    log = tmp_path / "logs" / "pretrained.log"
    assert quickstart.curve(log, "train_inner", "accuracy") == [(10, 5.0), (20, 11.0), (30, 16.0), (40, 21.0)]
    assert quickstart.curve(log, "valid", "loss") == [(40, 9.1)]
    assert quickstart.curve(tmp_path / "no such log", *quickstart.TEST) == []


def test_summary_holds_what_was_measured(tmp_path: Path) -> None:
    write_training_logs(tmp_path / "logs")
    for name, result in RESULTS.items():
        (tmp_path / "logs" / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    shown = quickstart.write_summary(tmp_path)
    rows = dict(quickstart.summary_rows(RESULTS))
    held_out = "masked-token accuracy on held-out text (15 % masked)"
    assert (rows[f"{held_out}, before"], rows[f"{held_out}, after"]) == ("0.5 %", "20.5 %")
    assert rows["perplexity on held-out text, before"] == "8,123"
    assert rows["test accuracy from the pretrained encoder"] == "79.5 % (79.0 to 80.0, 2 seeds)"
    assert rows["test accuracy of logistic regression on the nearest words"] == "55.5 %"
    assert rows["minutes of pretraining"] == "3.0" and rows["test accuracy by guessing"] == "25.0 %"
    written = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert all(f"| {name} " in written and f"| {value} " in written for name, value in rows.items())
    assert "a <mask>" in written and "    word 25 %" in written
    assert shown.startswith("| ")
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == RESULTS
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_counting_knows_the_words_that_it_is_given() -> None:
    train = [(f"{word} {filler} far", "x y", word) for word in ("robin", "anchor") for filler in ("the", "a", "old")]
    test = [("an robin far", "x y", "robin"), ("the anchor far", "x y", "anchor")]
    accuracy = {name: quickstart.accuracy_of_counting(train, test, seen) for name, seen in quickstart.COUNTED.items()}
    # The word that gives the answer is the third from the gap in training, and the second in no text.
    assert accuracy["all words"] == 100.0
    assert quickstart.nearest_words("one two three", "four five six") == "-2:two -1:three 1:four 2:five"
    near = [("far a b", "c d", "first"), ("far a e", "c d", "second")] * 3
    assert quickstart.accuracy_of_counting(near, near[:2], quickstart.nearest_words) == 100.0


def test_the_longest_words_of_held_out_paragraphs_are_masked(tmp_path: Path) -> None:
    text = tmp_path / "valid.txt"
    long = "many long words " + "a " * 30
    text.write_text(f"too short\n\nthe longest word of this line is certainly here\n{long}\n", encoding="utf-8")
    expected = ["the longest word of this line is <mask> here", "many long <mask>" + " a" * 22]
    assert texts.held_out_sentences(text, lambda text: True) == expected
    # Of a text that has more tokens than the model has positions, only as many words as fit are shown, or none.
    assert texts.held_out_sentences(text, lambda text: len(text.split()) <= 8) == [
        "the longest word of this line is <mask>", "many long <mask>" + " a" * 5
    ]  # fmt: skip
    assert texts.held_out_sentences(text, lambda text: False) == []


@pytest.mark.slow
def test_quickstart_on_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    for name, topic in (("birds", "robin"), ("ships", "harbour")):
        lines = []
        for _ in range(300):
            for _ in range(8):
                lines.append(" ".join(generator.choice([topic, "the", "old", "near", "with"], 30)) + ".")
            # Words of several pieces: these paragraphs have more tokens than the model has positions.
            lines.extend(" ".join(f"word{number}" for number in generator.integers(0, 4000, 30)) for _ in range(5))
            lines.append("")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    options = [str(tmp_path / "birds.txt"), str(tmp_path / "ships.txt"), "--output", str(tmp_path / "run")]
    options += ["--updates", "6", "--fine-tuning-updates", "8", "--seeds", "1"]
    run(["python", QUICKSTART / "quickstart.py", *options])

    written = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    words = written["data"]["words"]
    assert {"near", "old", "the", "with"} <= set(words) <= {"near", "old", "the", "with", "robin", "harbour"}
    # The start knows the words' frequencies, which is far from guessing, and six updates change it a little.
    before, after = (written[step]["perplexity"] for step in ("random", "pretrained"))
    assert before < 500 and after != before and 0.2 < after / before < 1.5
    accuracy = quickstart.test_accuracies(written)
    assert {start: len(values) for start, values in accuracy.items()} == {"pretrained": 1, "random": 1}
    assert written["masks"]["filled"]
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000

    quickstart.main(options)
    said = capsys.readouterr().err
    assert said.count("1 of 1 runs done earlier") == 5 and "2 of 2 runs done earlier" in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8")) == written
    with pytest.raises(SystemExit, match=r"other settings \(fine_tunings: 1 then, 2 now\)"):
        quickstart.main([*options[:-1], "2"])
