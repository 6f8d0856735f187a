"""A sweep through the real commands: killed in the middle, gone on with, failing and diverging runs, and its report."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from end_to_end.process_server import programs
from end_to_end.small import start, wait_until
from end_to_end.test_finetuning import prepare_task, topic_of_a_sentence
from end_to_end.toy import run
from fairseq_maelm import cli
from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.sweep.programs import read_marker
from fairseq_maelm.sweep.report import write_report

# 40 examples in batches of 16.
EPOCHS, UPDATES = 8, 3
OPTIONS = {"task": "maelm_sentences", "criterion": "maelm_sentences", "tokens-per-sample": 512, "head-start": "frozen"}


@pytest.fixture(scope="module")
def tasks(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all tasks: one, the topic of a sentence."""
    return prepare_task(tmp_path_factory.mktemp("tasks"), toy_data, topic_of_a_sentence, (40, 16)).parent


def recipe(folder: Path, **changes: Any) -> Path:
    """A recipe with a learning rate that learns and one that no float survives."""
    content = {
        "task": "topics",
        "data": "task",
        "metric": "accuracy",
        "options": OPTIONS,
        "search": {"lr": [1e-3, 1e30], "batch-size": [16], "epochs": [EPOCHS], "warm-up": [0]},
        "paper": {"base": {"MAE-LM": 99.5}},
        **changes,
    }
    path = folder / "topics.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def command(folder: Path, tasks: Path, pretrained: Path, *more: Any, **changes: Any) -> list[Any]:
    models = ["--checkpoint", f"ours={pretrained}", "--checkpoint", "random weights=random"]
    words = ["maelm", "sweep", recipe(folder, **changes), "--data", tasks, *models]
    return [*words, "--output", folder / "sweep", *([] if "--seeds" in more else ["--seeds", 1]), *more]


def starts(log: Path) -> int:
    return log.read_text(encoding="utf-8").count("$ env OMP_NUM_THREADS=1 fairseq-train ")


def test_data_in_another_vocabulary_are_refused_before_anything_is_written(tasks, tmp_path):
    words = command(tmp_path, tasks, find_checkpoint(Path("maelm-english-14m-uncased")))
    refused = run(words, check=False)
    assert re.search(r"topics \(\S*\): \S*task was not prepared with the vocabulary of \S*14m-uncased", refused)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tasks, pretrained, tmp_path, capsys, monkeypatch):
    words = command(tmp_path, tasks, pretrained)
    output = tmp_path / "sweep"
    kill_in_the_second_run(words, output)
    monkeypatch.setattr(sys, "executable", str(programs() / "python"))
    # In the order of the grid: ours and random weights at the first learning rate, then both at the second.
    logs = sorted(output.rglob("run.log"), key=lambda path: path.stat().st_ctime)
    ours, drawn = logs
    assert ("/ours/" in str(ours), "/random weights/" in str(drawn)) == (True, True)
    finished = ours.with_name("run.json").stat().st_mtime_ns
    blocked = Path(str(drawn.parent).replace("lr_0.001", "lr_1e+30")) / "checkpoints"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")

    with pytest.raises(
        SystemExit, match=r"1 run has no result \(topics, random weights, lr 1e\+30.*NotADirectoryError"
    ):
        cli.main(list(map(str, words[1:])))
    said = capsys.readouterr()
    assert "FAILED" in said.err and "| ours " in said.out and "paper, base: MAE-LM" in said.out
    assert ours.with_name("run.json").stat().st_mtime_ns == finished
    diverged = Path(str(ours).replace("lr_0.001", "lr_1e+30"))
    assert [starts(log) for log in (ours, drawn, diverged, blocked.with_name("run.log"))] == [1, 2, 1, 1]
    second = drawn.read_text(encoding="utf-8").rpartition("$ env OMP_NUM_THREADS=1")[2]
    assert "Loaded checkpoint" in second and '"train_loss"' in second, "it began again, or had been finished"
    assert second.count("begin validation") < EPOCHS
    results = [read_marker(log.with_name("run.json")) or {} for log in (ours, drawn, diverged)]
    assert results[0]["updates"] <= EPOCHS * UPDATES
    # 16 sentences: every accuracy is a whole number of them.
    assert all(each["score"] * 0.16 == pytest.approx(round(each["score"] * 0.16), abs=0.01) for each in results[:2])
    assert "FloatingPointError" in results[2]["failed"]
    assert not list(output.rglob("*.pt"))

    report = write_report(output)
    assert report == said.out and "Runs that diverged:" in report and "Runs that failed:" in report
    with open(output / "runs.csv", encoding="utf-8") as stream:
        states = [line["state"] for line in csv.DictReader(stream)]
    assert states == ["finished", "finished", "diverged", "failed"]


def kill_in_the_second_run(words: list[Any], output: Path) -> None:
    """Kill a sweep and its run, as a crash does, when the second run has saved a checkpoint but is not done.

    Their processes have no stand-ins: here the scripts that pip installed run.
    """
    log, saved = output.with_name("output.txt"), "runs/*/random weights/*/seed_1/checkpoints/checkpoint_last.pt"
    maelm = Path(sys.executable).with_name("maelm")
    process = start([sys.executable, maelm, *words[1:]], log)
    wait_until(lambda: bool(list(output.glob(saved))), process, log)
    process.kill()
    process.wait()
    subprocess.run(["pkill", "-KILL", "-f", str(output)], check=True)
    assert len(list(output.rglob("seed_1/run.json"))) == 1


def test_a_dry_run_shows_every_command_and_writes_nothing(tasks, pretrained, tmp_path, capsys):
    words = command(tmp_path, tasks, pretrained, "--dry-run", "--gpus", "1", "--precision", "bf16", "--seeds", "2")
    cli.main(list(map(str, words[1:])))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"# 8 runs, 0 of them finished; in total they train on {8 * 40 * EPOCHS:,} examples"
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert len(commands) == 8 and len({" ".join(each) for each in commands}) == 8
    for each, model in zip(commands, ["ours", "random weights"] * 4):
        options = dict(zip(each, each[1:]))
        assert ("--finetune-from-model" in each) == (model == "ours") != ("--init-std" in each)
        sizes = [options.get(name) for name in ("--arch", "--max-positions", "--relative-num-buckets")]
        assert sizes == (["maelm", None, None] if model == "ours" else ["maelm_tiny", "96", "16"])
        assert options["--tokens-per-sample"] == "96"
        assert options["--max-update"] == options["--total-num-update"] == str(EPOCHS * UPDATES)
        assert options["--precision"] == "bf16" and "--cpu" not in each
        assert model in options["--save-dir"]
    assert [dict(zip(each, each[1:]))["--seed"] for each in commands] == ["1", "1", "2", "2"] * 2
    for option, name in (("--lr 1e-3", "lr"), ("--lr 1e30", "lr"), ("--max-sentences 8", "batch-size")):
        with pytest.raises(SystemExit):
            cli.main(list(map(str, [*words[1:], f"--options={option}"])))
        assert f"--options: {name} is set by the sweep for each run" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()
