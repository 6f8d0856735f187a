"""The few-shot study: its table from finished runs, and what it would do."""

import sys
from pathlib import Path
from typing import Any

import pytest
from end_to_end.toy import ROOT

from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.runner import Runner

FOLDERS = [ROOT / "examples" / "prompting", ROOT / "examples"]
# The example's modules lie beside its script and are in no package; other examples may use the same names.
sys.path[:0] = map(str, FOLDERS)

import few_shot  # noqa: E402
import paper  # noqa: E402

for folder in FOLDERS:
    sys.path.remove(str(folder))

RUNNER = Runner([""], 0, None, retry_failed=False, dry_run=False)
POINTS = [(2, "1e-5"), (8, "1e-5")]


@pytest.fixture
def args(tmp_path: Path) -> Any:
    """The command line of a study of two tasks, two splits and two settings, whose files are there."""
    checkpoint, splits = tmp_path / "checkpoint.pt", tmp_path / "splits"
    checkpoint.touch()
    for task in ("MNLI", "CoLA"):
        for seed in (13, 21):
            (splits / "tables" / task / f"16-{seed}").mkdir(parents=True)
    words = ["--checkpoint", checkpoint, "--splits", splits, "--output", tmp_path / "runs", "--tasks", "MNLI", "CoLA"]
    words += ["--ways", "zero-shot", "prompt", "--seeds", 13, 21, "--batch-sizes", 2, 8, "--learning-rates", "1e-5"]
    return few_shot.parse(list(map(str, words)))


def write_runs(args: Any) -> None:
    """Finished runs: of each split the second setting is the better one on the development set."""
    for task, metric in (("MNLI", "accuracy"), ("CoLA", "mcc")):
        tables = [path.stem for path in few_shot.test_tables(args, task)]
        for number, name in enumerate(tables):
            write(args.output / "zero-shot" / task / f"{name}.json", {metric: 50.0 + number})
        for seed, score in ((13, 60.0), (21, 64.0)):
            runs = [few_shot.Trial("prompt", task, seed, *point) for point in POINTS]
            for run, dev in zip(runs, (70.0, 80.0)):
                write(run.marker(args), {"dev": dev})
            for number, name in enumerate(tables):
                write(runs[1].folder(args) / f"{name}.json", {metric: score + number, "other": 0.0})


def write(path: Path, content: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def test_the_table_of_finished_runs(args: Any) -> None:
    write_runs(args)
    table = few_shot.table_of(few_shot.measure(args, RUNNER), args.tasks)
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    assert lines[0] == ["", "", "MNLI (accuracy)", "CoLA (mcc)"]
    assert lines[3:5] == [
        ["zero-shot", "MAE-LM (paper)", "52.1 / 54.3", "2.0"],
        ["zero-shot", "this checkpoint", "50.0 / 51.0", "50.0"],
    ]
    assert lines[5] == ["prompt", "RoBERTa (paper)", "68.3 (2.3) / 70.5 (1.9)", "9.3 (7.3)"]
    assert lines[7] == ["prompt", "this checkpoint", "62.0 (2.0) / 63.0 (2.0)", "62.0 (2.0)"]


def test_the_papers_table_is_whole() -> None:
    numbers = {way: {model: list(row) for model, row in rows.items()} for way, rows in paper.TABLE_7.items()}
    tasks = ["MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B"]
    assert numbers == {way: {"RoBERTa (paper)": tasks, "MAE-LM (paper)": tasks} for way in few_shot.WAYS}
    assert paper.TABLE_7["head"]["MAE-LM (paper)"]["STS-B"] == "53.0 (9.0)"


def test_a_dry_run_writes_commands_and_nothing_else(
    args: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(few_shot, "model_options", lambda checkpoint: ["--arch", "maelm_tiny", "--max-positions", "64"])
    assert few_shot.measure(args, RUNNER._replace(dry_run=True, slots=["1"])) == {}
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 2 * 2 * 2 and all(
        each.startswith("CUDA_VISIBLE_DEVICES=1 fairseq-train") for each in commands
    )
    assert "# prompt MNLI, split 13, batch size 2, lr 1e-5" in lines and "scored" in lines[-1]
    assert not args.output.exists()
