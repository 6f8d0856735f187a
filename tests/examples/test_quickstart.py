"""The quickstart: logs into a summary, resumed runs; and all at once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
# The example's modules lie beside its script and are in no package.
sys.path.insert(0, str(QUICKSTART))

import commands  # noqa: E402
import quickstart  # noqa: E402
import recipes  # noqa: E402
import report  # noqa: E402
from workspace import Workspace  # noqa: E402


def log_line(kind: str, metrics: dict[str, Any]) -> str:
    """A line of metrics as fairseq writes it."""
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(metrics)}\n"


def write_training_logs(logs: Path) -> None:
    """Logs of two stages of pretraining, each interrupted after 30 updates and resumed from 10, and of four tunings."""
    logs.mkdir()
    start = log_line("valid", {"valid_loss": "13", "valid_accuracy": "0.5", "valid_num_updates": "1"})
    (logs / "start.log").write_text(start, encoding="utf-8")
    lines = ["$ the command\n", "not a record\n"]
    for update, accuracy in ((10, 5), (20, 10), (30, 15), (20, 11), (30, 16), (40, 21)):
        lines.append(log_line("train_inner", {"num_updates": str(update), "loss": "9.5", "accuracy": str(accuracy)}))
    lines.append(log_line("valid", {"valid_num_updates": "40", "valid_loss": "9.1", "valid_accuracy": "20.5"}))
    lines.append('| INFO | valid | {"cut off')
    for name in (report.SHORT_LOG, report.LONG_LOG):
        (logs / name).write_text("".join(lines), encoding="utf-8")
    for start_name, best in ((report.PRETRAINED, 80.0), (report.RANDOM, 60.0)):
        for seed in (1, 2):
            records = [
                log_line("test", {"test_num_updates": str(update), "test_accuracy": str(best - 10 + update + seed)})
                for update in (4, 8)
            ]
            report.fine_tuning_log(logs, start_name, seed).write_text("".join(records), encoding="utf-8")


RESULTS: dict[str, Any] = {
    "text": {"characters": 2_500_000, "documents": 1234, "seconds": 6.0},
    "data": {
        "tokens": {"train": 600_000, "valid": 20_000},
        "classes": ["a", "b", "c", "d"],
        "examples": {"train": 1200, "valid": 100, "test": 400},
        "seconds": 6.0,
    },
    "start": {"accuracy": 0.5, "perplexity": 8123.4, "seconds": 6.0},
    "short": {"accuracy": 15.5, "perplexity": 202.3, "seconds": 12.0},
    "pretraining": {"accuracy": 12.5, "perplexity": 190.5, "seconds": 42.0},
    "score": {"accuracy": 20.5, "perplexity": 152.3, "seconds": 6.0},
    "fine_tuning": {"accuracy": {"pretrained": [79.0, 80.0], "random": [59.0, 60.0]}, "chance": 25.0, "seconds": 36.0},
    "masks": {"filled": [{"text": "a <mask>", "candidates": [["word", 0.25], ["other", 0.125]]}], "seconds": 6.0},
}


def test_a_resumed_runs_last_values_count(tmp_path: Path) -> None:
    write_training_logs(tmp_path / "logs")
    log = tmp_path / "logs" / "pretraining.log"
    assert report.curve(log, "train_inner", "accuracy") == [(10, 5.0), (20, 11.0), (30, 16.0), (40, 21.0)]
    assert report.curve(log, "valid", "loss") == [(40, 9.1)]
    assert report.test_curve(tmp_path / "no such log") == []


def test_summary_holds_what_was_measured(tmp_path: Path) -> None:
    write_training_logs(tmp_path / "logs")
    shown = report.write_summary(tmp_path, RESULTS)
    rows = dict(report.summary_rows(RESULTS))
    assert rows["masked-token accuracy on held-out text (15 % masked), before"] == "0.5 %"
    assert rows["masked-token accuracy on held-out text (15 % masked), after"] == "20.5 %"
    assert rows["perplexity on held-out text, before"] == "8,123"
    assert rows["test accuracy from the pretrained encoder"] == "79.5 % (79.0 to 80.0, 2 seeds)"
    assert rows["test accuracy from random weights"] == "59.5 % (59.0 to 60.0, 2 seeds)"
    assert rows["time"] == "2.0 minutes, 0.9 of pretraining"
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert all(f"| {name} " in summary and f"| {value} " in summary for name, value in rows.items())
    assert "a <mask>" in summary and "word 25 %, other 12 %" in summary
    assert shown.startswith("| ")
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == RESULTS
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_summary_without_fine_tuning(tmp_path: Path) -> None:
    write_training_logs(tmp_path / "logs")
    results = {**RESULTS, "fine_tuning": {"accuracy": {}, "seconds": 0.0}}
    assert "none: the text has no two sources" in report.write_summary(tmp_path, results)
    assert (tmp_path / "curves.png").exists()


def test_smoothing_averages_neighbors() -> None:
    points = [(1, 0.0), (2, 3.0), (3, 6.0), (4, 0.0)]
    assert report.smooth(points, 3) == [(1, 1.5), (2, 3.0), (3, 3.0), (4, 3.0)]
    assert report.smooth(points, 1) == points


def test_finished_steps_are_skipped_and_other_settings_refused(tmp_path: Path, capsys: Any) -> None:
    calls = []

    def work() -> dict[str, Any]:
        calls.append(1)
        return {"lines": ["a result"]}

    for _ in range(2):
        results = Workspace(tmp_path / "run", {"updates": 3}, steps=1).step("name", "Title", work)
        assert results["lines"] == ["a result"] and results["seconds"] >= 0
    assert len(calls) == 1
    assert "[1/1] Title: done earlier" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"other settings \(updates: 3, and now 4\).*--output"):
        Workspace(tmp_path / "run", {"updates": 4}, steps=1)


def test_a_step_that_fails_is_not_finished(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "run", {}, steps=2)

    def fail() -> dict[str, Any]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        workspace.step("name", "Title", fail)
    assert workspace.step("name", "Title", lambda: {"value": 1})["value"] == 1


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match="no run of the quickstart"):
        Workspace(tmp_path, {}, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failed_command_shows_the_end_of_its_log_and_stops_the_others(tmp_path: Path) -> None:
    python = Path(sys.executable).name
    endless = commands.Command((python, "-c", "import time; time.sleep(600)"), tmp_path / "endless.log")
    failing = commands.Command((python, "-c", "print('the reason'); raise SystemExit(3)"), tmp_path / "failing.log")
    with pytest.raises(commands.CommandFailed, match=r"exit status 3(.|\n)*the reason(.|\n)*failing\.log"):
        commands.run([endless, failing], "test", side_by_side=2)
    assert (tmp_path / "endless.log").read_text(encoding="utf-8").startswith("$ ")


def test_the_longest_words_of_held_out_paragraphs_are_masked(tmp_path: Path) -> None:
    text = tmp_path / "valid.txt"
    long = "many long words " + "a " * 30
    text.write_text(f"too short\n\nthe longest word of this line is certainly here\n{long}\n", encoding="utf-8")
    expected = ["the longest word of this line is <mask> here", "many long <mask>" + " a" * 22]
    assert recipes.held_out_sentences(text) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--updates", "0"], "at least 1"), (["no/such/file.txt"], "no/such/file.txt")],
)
def test_bad_arguments_are_refused_before_any_work(
    arguments: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as stopped:
        quickstart.main([*arguments, "--output", str(tmp_path / "run")])
    assert message in str(stopped.value) + capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_quickstart_on_two_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = {"birds": ["robin", "sings", "feather", "nest"], "ships": ["harbour", "sail", "anchor", "crew"]}
    for name, own in words.items():
        lines = []
        for _ in range(300):
            lines.append(" ".join(generator.choice([*own, "the", "a", "old", "morning", "near", "with"], 30)) + ".")
            lines.extend(" ".join(f"word{number}" for number in generator.integers(0, 4000, 30)) for _ in range(5))
            lines.append("")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    run = [sys.executable, str(QUICKSTART / "quickstart.py"), str(tmp_path / "birds.txt"), str(tmp_path / "ships.txt")]
    run += ["--output", str(tmp_path / "run"), "--updates", "6", "--fine-tuning-updates", "8", "--seeds", "1"]
    first = subprocess.run(run, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr

    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["data"]["classes"] == ["birds", "ships"]
    # The start knows the words' frequencies, which is far from guessing, and six updates change it a little.
    before, after = (summary[step]["perplexity"] for step in ("start", "score"))
    assert before < 500 and after != before and 0.5 < after / before < 1.5
    accuracy = summary["fine_tuning"]["accuracy"]
    assert {start: len(values) for start, values in accuracy.items()} == {"pretrained": 1, "random": 1}
    assert summary["masks"]["filled"]
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000

    again = subprocess.run(run, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("done earlier") == 8
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8")) == summary


@pytest.mark.parametrize("checkpoint", [None, Path("short.pt")])
def test_fine_tuning_keeps_away_from_the_current_folder(tmp_path: Path, checkpoint: Path | None) -> None:
    words = recipes.fine_tune(tmp_path, 2, checkpoint, updates=10, seed=1)
    assert "--no-save" in words and words[words.index("--save-dir") + 1] == str(tmp_path)
