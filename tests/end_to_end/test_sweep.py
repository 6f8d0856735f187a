"""A sweep through the real commands: killed in the middle, gone on with, failing and diverging runs, and its report."""

import csv
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from end_to_end.toy import ROOT, TINY_TRAINING, TOPICS, _resolve, command_environment, run, sentence
from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.report import write_report

EPOCHS = 12


@pytest.fixture(scope="module")
def checkpoint(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates of pretraining, with numbers that are not the architecture's."""
    folder = tmp_path_factory.mktemp("pretrained")
    options = ["--max-positions", 96, "--relative-num-buckets", 16, "--max-update", 2, "--disable-validation"]
    run(["fairseq-train", toy_data, *TINY_TRAINING, *options, "--save-dir", folder])
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def tasks(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all tasks: one, the topic of a sentence."""
    folder = tmp_path_factory.mktemp("tasks")
    generator = random.Random(5)
    topics = [generator.choice(sorted(TOPICS)) for _ in range(56)]
    lines = [f"{sentence(topic, generator)}\t{topic}\n" for topic in topics]
    for name, part in (("train", lines[:40]), ("valid", lines[40:])):
        (folder / f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    script = ROOT / "examples" / "finetuning" / "prepare_sentences.py"
    tables = ["--train", folder / "train.tsv", "--valid", folder / "valid.tsv"]
    run(["python", script, "--data", toy_data, *tables, "--output", folder / "topics"])
    return folder


def recipe(folder: Path, **changes: Any) -> Path:
    """A recipe with a learning rate that learns and one that no float survives."""
    content = {
        "task": "topics",
        "data": "topics",
        "metric": "accuracy",
        "options": {"task": "sentence_prediction", "criterion": "sentence_prediction", "num-classes": 4},
        "search": {"lr": [1e-3, 1e30], "batch-size": [16], "epochs": [EPOCHS], "warm-up": [0]},
        "paper": {"base": {"MAE-LM": 99.5}},
        **changes,
    }
    path = folder / "topics.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def command(folder: Path, tasks: Path, checkpoint: Path, *more: Any, **changes: Any) -> list[Any]:
    models = ["--checkpoint", f"ours={checkpoint}", "--checkpoint", "random weights=random"]
    words = ["maelm", "sweep", recipe(folder, **changes), "--data", tasks, *models, "--seeds", 1]
    return [*words, "--output", folder / "sweep", *more]


def starts(log: Path) -> int:
    return log.read_text(encoding="utf-8").count("$ OMP_NUM_THREADS=1 fairseq-train ")


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tasks: Path, checkpoint: Path, tmp_path: Path) -> None:
    words = command(tmp_path, tasks, checkpoint)
    output = tmp_path / "sweep"
    kill_in_the_second_run(words, output)
    # In the order of the grid: ours and random weights at the first learning rate, then both at the second.
    logs = sorted(output.rglob("run.log"), key=lambda path: path.stat().st_ctime)
    ours, drawn = logs
    assert ("/ours/" in str(ours), "/random weights/" in str(drawn)) == (True, True)
    finished = ours.with_name("run.json").stat().st_mtime_ns
    place = read_json(output / "sweep.json")["runs"]
    assert [(each["model"], each["setting"]["lr"]) for each in place] == [
        ("ours", 1e-3), ("random weights", 1e-3), ("ours", 1e30), ("random weights", 1e30),
    ]  # fmt: skip
    blocked = Path(str(drawn.parent).replace("lr_0.001", "lr_1e+30")) / "checkpoints"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")

    said = run(words, check=False)
    assert "maelm sweep: error: 1 runs have no result (topics, random weights, lr 1e+30" in said
    assert "FileExistsError" in said and "FloatingPointError" in said
    assert ours.with_name("run.json").stat().st_mtime_ns == finished
    diverged = Path(str(ours).replace("lr_0.001", "lr_1e+30"))
    assert [starts(log) for log in (ours, drawn, diverged, blocked.with_name("run.log"))] == [1, 2, 1, 1]
    second = drawn.read_text(encoding="utf-8").rpartition("$ OMP_NUM_THREADS=1")[2]
    assert "Loaded checkpoint" in second and "epoch 1\n" not in second, "it began anew"
    results = {log: read_json(log.with_name("run.json")) for log in (ours, drawn, diverged)}
    assert results[ours]["updates"] <= EPOCHS * 3
    # 16 sentences: every accuracy is a whole number of them.
    assert all(results[log]["score"] * 0.16 == pytest.approx(round(results[log]["score"] * 0.16)) for log in logs)
    assert "FloatingPointError" in results[diverged]["failed"]
    # Nothing is left but what a retry would need.
    assert not list(output.rglob("*.pt"))

    report = write_report(output)
    assert "| ours " in report and "paper, base: MAE-LM" in report and "Runs that diverged:" in report
    with open(output / "runs.csv", encoding="utf-8") as stream:
        states = [line["state"] for line in csv.DictReader(stream)]
    assert states == ["finished", "finished", "diverged", "failed"]
    assert (output / "spread.svg").exists()
    # What was in the way is gone: that run alone is tried again, and keeps nothing of its failure.
    blocked.unlink()
    more = ["--retry-failed", "--only", "lr=1e30", "--keep-checkpoints", "best"]
    assert "1e+30" in run([*words, *more])
    assert [starts(log) for log in (ours, drawn, diverged, blocked.with_name("run.log"))] == [1, 2, 1, 2]
    assert "FloatingPointError" in read_json(blocked.with_name("run.json"))["failed"]


def kill_in_the_second_run(words: list[Any], output: Path) -> None:
    """Kill a sweep, and nothing but itself, when its second run has saved a checkpoint but is not done."""
    with open(output.with_name("output.txt"), "w+") as said:
        process = subprocess.Popen(
            _resolve(list(map(str, words))), env=command_environment(), stdout=said, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 300
        while not list(output.glob("runs/*/random weights/*/seed_1/checkpoints/checkpoint_last.pt")):
            assert process.poll() is None, said.seek(0) or said.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(list(output.rglob("run.json"))) == 1
