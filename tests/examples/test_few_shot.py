"""The few-shot study: its table from finished runs, and what it would do."""

import json
from pathlib import Path

import pytest
from end_to_end.toy import ROOT

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.studies.plan import Places

PLAN = ROOT / "examples" / "prompting" / "few_shot.yaml"
with pytest.MonkeyPatch.context() as patch:
    # Modules of examples are in no package.
    patch.syspath_prepend(ROOT / "examples")
    import rows
    import study


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command line of a study of two tasks, two splits and two settings, whose files are there."""
    (tmp_path / "checkpoint.pt").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").touch()
    for task in ("MNLI", "CoLA"):
        for seed in (13, 21):
            (tmp_path / "splits" / "tables" / task / f"16-{seed}").mkdir(parents=True)
    words = [PLAN, tmp_path / "data", tmp_path / "runs", "--tasks", "MNLI", "CoLA", "--rows", "zero-shot", "prompt"]
    words += ["--set", f"checkpoint={tmp_path / 'checkpoint.pt'}", f"splits={tmp_path / 'splits'}", "seeds=13 21"]
    return list(map(str, [*words, "batch-sizes=2 8", "learning-rates=1e-5"]))


def write_runs(output: Path) -> None:
    """Finished runs: of each split the second setting is the better one on the development set."""
    for task, metric, names in (("MNLI", "accuracy", ("test_matched", "test_mismatched")), ("CoLA", "mcc", ("test",))):
        for number, name in enumerate(names):
            write(output / "zero-shot" / task / f"{name}.json", {metric: 50.0 + number})
        for seed, score in ((13, 60.0), (21, 64.0)):
            split = output / "prompt" / task / str(seed)
            for run, dev in zip(("2-1e-5", "8-1e-5"), (70.0, 80.0)):
                write(split / run / "train.json", {"dev": dev})
            for number, name in enumerate(names):
                write(split / "8-1e-5" / f"{name}.json", {metric: score + number, "other": 0.0})


def write(path: Path, content: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def test_the_table_of_finished_runs(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "runs"
    write(output / "settings.json", json.loads(json.dumps(rows.settings_of(rows.parse(words)))))
    write_runs(output)
    rows.main(words)
    captured = capsys.readouterr()
    assert "17 of 17 runs done earlier" in captured.err
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in captured.out.splitlines()]
    assert lines[0] == ["", "", "MNLI (accuracy)", "CoLA (mcc)"]
    assert lines[3:5] == [
        ["zero-shot", "MAE-LM (paper)", "52.1 / 54.3", "2.0"],
        ["zero-shot", "this checkpoint", "50.0 / 51.0", "50.0"],
    ]
    assert lines[5] == ["prompt", "RoBERTa (paper)", "68.3 (2.3) / 70.5 (1.9)", "9.3 (7.3)"]
    assert lines[7] == ["prompt", "this checkpoint", "62.0 (2.0) / 63.0 (2.0)", "62.0 (2.0)"]
    assert (output / "table.md").read_text(encoding="utf-8") == captured.out
    (output / "prompt" / "CoLA" / "21" / "8-1e-5" / "test.json").unlink()
    table = rows.parse(words).plan.report.write(output)
    assert table.splitlines()[7].split("|")[4].strip() == "–", "one of two splits has no score"


def test_a_dry_run_writes_commands_and_nothing_else(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "model_options", lambda checkpoint: ["--arch", "maelm_tiny", "--max-positions", "64"])
    rows.main([*words, "--dry-run", "--gpus", "1"])
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=1 fairseq-train")]
    assert len(commands) == 2 * 2 * 2 and all("--max-length 64 --arch maelm_tiny" in each for each in commands)
    assert lines[lines.index("# prompt/MNLI/13/2-1e-5/train") + 1] == commands[0]
    assert f"{tmp_path}/runs/prompt/CoLA/21/BEST/checkpoint_best.pt" in lines[-1], "known when the runs have ended"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["seeds=13 22"], "16-22, which the step 'training' needs"),
        (
            ["checkpoint=no/such/file"],
            "there is no checkpoint no/such/file: give a file, a folder, or one of maelm-english-14m-uncased",
        ),
        (["splits=no/such/folder"], "no/such/folder, which --set splits needs"),
        (["epochs=2"], "--set epochs: there is no such setting in"),
        (["updates=2", "--tasks", "WNLI=folder"], "there is no such task (only CoLA, SST-2"),
        (["updates=2", "--metrics", "SST-2=mcc"], "--metrics SST-2=...: there is no task of this name"),
    ],
)
def test_what_is_missing_is_named_before_any_work(
    more: list[str], message: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rows.main([*words, *more])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_may_be_an_encoder_that_comes_along(words: list[str]) -> None:
    (checkpoint,) = rows.parse([*words, "checkpoint=maelm-english-14m-uncased"]).plan.content["checkpoint"]
    assert checkpoint.is_file() and "maelm-english-14m-uncased" in checkpoint.parts


def test_places_are_filled_word_by_word(tmp_path: Path) -> None:
    known = {
        "folder": tmp_path / "a b",
        "files": [Path("a b"), Path("c")],
        "more": "--lr {rate} '--x y'",
        "none": "",
    }
    places = Places(known, {"rate": lambda own: "1e-3"})
    assert places.words("run {folder}/x {files} {files}/ {more} {none} end") == [
        "run", f"{tmp_path}/a b/x", "a b", "c", "a b:c/", "--lr", "1e-3", "--x y", "end",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no value for the placeholder \{nowhere\}"):
        places.text("{nowhere}")
