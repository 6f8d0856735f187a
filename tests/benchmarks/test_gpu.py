"""The call that measures everything on a GPU: time, interruption, failures, and commands that the scripts take."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import gpu
import pretraining
import pytest
import shapes
from end_to_end.toy import run, write_corpus

SCRIPT = Path(gpu.__file__).with_suffix(".sh")
ALWAYS = ["tests", "base", "14m", "32m", "150m", "kernels", "attention", "flex", "step", "memory", "fp16", "modern"]
ENCODERS = ["encoder", "twin"]
# A python3 that runs gpu.py itself, and replaces all that it starts: writes its words down, says that a test
# passed, and fails, or sleeps, for some of them.
STAND_IN = """#!/usr/bin/env bash
if [[ $1 == */gpu.py ]]; then exec {python} "$@"; fi
printf '%q ' "$@" >>{folder}/calls; echo >>{folder}/calls
[[ $1 == -c ]] || echo {passed}
if [[ -n '{failing}' && "$*" == *{failing}* ]]; then exit 1; fi
if [[ -n '{hanging}' && "$*" == *{hanging}* ]]; then sleep 100; fi
if [[ "$*" == *"prepare corpus"* ]]; then mkdir -p {folder}/results/data; touch {folder}/results/data/train.idx; fi
"""


class Machine:
    """A folder with a stand-in for python3, and calls of the script in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "results"
        (folder / "bin").mkdir()
        (folder / "text.txt").touch()

    def start(self, *words: str, failing: str = "", hanging: str = "", passed: str = "'3 passed'") -> Any:
        """Start the script; of "failing" and "hanging" a part of the words of a command."""
        names = {"python": sys.executable, "folder": self.folder, "failing": failing, "hanging": hanging}
        path = self.folder / "bin" / "python3"
        path.write_text(STAND_IN.format(**names, passed=passed))
        path.chmod(0o755)
        environment = {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}"}
        command = ["bash", str(SCRIPT), "--text", str(self.folder / "text.txt"), "--output", str(self.output), *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *words: str, **behavior: str) -> tuple[int, str]:
        """Return status and output."""
        process = self.start(*words, **behavior)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def calls(self) -> list[list[str]]:
        """Return the words of each command so far, that which looks for a GPU left out."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words for words in map(shlex.split, lines) if words[0] != "-c"]

    def slices(self) -> dict[str, str]:
        """Return how slices ended."""
        return {
            name: each["status"] for name, each in json.loads((self.output / "gpu.json").read_text())["slices"].items()
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_slices_run_once_and_the_scripts_take_their_commands(machine: Machine) -> None:
    status, output = machine.run("--minutes", "500", "--authors-code", str(machine.folder))
    assert status == 0 and [line.split(":")[0] for line in output.splitlines()] == [*ALWAYS, "authors", *ENCODERS]
    prepare, tests, *others = machine.calls()
    assert [words[2] for words in others if words[0] == "-m"] == ["prepare", "prepare"], "the encoder's own symbols"
    assert prepare[:4] == ["-m", "fairseq_maelm", "prepare", "corpus"] and tests == [
        "-m",
        "pytest",
        "-m",
        "gpu",
        *map(str, gpu.TESTS),
    ]
    others = [words for words in others if words[0] != "-m"]
    assert all(Path(words[0]).exists() for words in others)
    steps = [pretraining.arguments_of(words[1:]) for words in others if words[0].endswith("pretraining.py")]
    assert all(step.device == "cuda" and step.resume and step.data == machine.output / "data" for step in steps)
    assert [step.precision for step in steps] == 4 * [["bf16"]] + [["fp16"]] + 2 * [["bf16"]]
    assert all(pretraining.split_name(name) for step in steps for name in step.contenders.split(","))
    tables = [shapes.arguments(words[1:]) for words in others if words[0].endswith("shapes.py")]
    assert [table.size for table in tables] == ["base", "14m", "32m", "modern"]
    assert [words[4] for words in others if words[0].endswith("encoder.py")] == ["maelm", "mlm"]
    calls = len(machine.calls())
    assert machine.run("--minutes", "500")[0] == 0 and len(machine.calls()) == calls


def test_the_marked_tests_are_where_they_are_looked_for() -> None:
    tests = gpu.ROOT / "tests"
    marked = [
        path for path in tests.rglob("test_*.py") if re.search(r"^@?.*pytest\.mark\.gpu\b", path.read_text(), re.M)
    ]
    assert len(marked) == 3 and all(path.parent == gpu.TESTS[1] or path == gpu.TESTS[0] for path in marked)


def test_goes_on_where_the_time_was_up(machine: Machine) -> None:
    """Nothing begins for which there is no time; what is not carried along is made again."""
    words = ("kernels", "modern", "--minutes")
    status, output = machine.run(*words, "5.9")
    assert status == 0 and machine.slices() == {"kernels": "done"} and "left for the next call: modern" in output
    (machine.output / "data" / "train.idx").unlink()
    status, output = machine.run(*words, "5.9")
    assert status == 1 and "nothing was measured: --minutes 5.9 is too little" in output
    assert machine.run(*words, "8")[0] == 0 and machine.slices() == {"kernels": "done", "modern": "done"}
    assert [words[2] for words in machine.calls()].count("prepare") == 2


def test_a_slice_that_was_cut_off_runs_again(machine: Machine) -> None:
    """As where the machine is taken away: the folder holds the slices before it."""
    process = machine.start("--minutes", "100", "tests", "kernels", hanging="attention_gpu")
    while not any("attention_gpu" in words[0] for words in machine.calls()):
        time.sleep(0.1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in output
    assert machine.slices() == {"tests": "done"}
    status, _ = machine.run("--minutes", "100", "tests", "kernels")
    assert status == 0 and machine.slices() == {"tests": "done", "kernels": "done"}
    assert sum("pytest" in words for words in machine.calls()) == 1


def test_a_slice_that_fails_is_named_and_runs_again_when_asked(machine: Machine) -> None:
    words = ("--minutes", "100", "kernels", "memory")
    status, output = machine.run(*words, failing="attention_gpu")
    assert status == 1 and "kernels: failed" in output and "kernels.log" in output and "memory: done" in output
    calls = len(machine.calls())
    status, output = machine.run(*words)
    assert status == 1 and "--retry-failed" in output and len(machine.calls()) == calls
    assert machine.run(*words, "--retry-failed")[0] == 0 and machine.slices()["kernels"] == "done"


def test_tests_that_were_all_skipped_are_a_failure(machine: Machine) -> None:
    status, output = machine.run("--minutes", "100", "tests", passed="'70 skipped'")
    assert status == 1 and "nothing ran" in output


def test_an_archive_has_all_that_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PART", 6000)
    folder, parts = tmp_path / "results", tmp_path / "parts"
    for name in (
        "data/train.bin",
        "runs/a/checkpoint_last.pt",
        "encoder/maelm/weights",
        "encoder/mlm.new/weights",
        "log",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 2000)
    parts.mkdir()
    (parts / "gpu.tar.30").write_text("of a larger one")
    gpu.archive(folder, parts / "gpu.tar")
    assert len(list(parts.iterdir())) > 5 and not (parts / "gpu.tar.30").exists()
    whole = io.BytesIO(b"".join(path.read_bytes() for path in sorted(parts.iterdir())))
    with tarfile.open(fileobj=whole) as tar:
        assert [entry.name for entry in tar if entry.isfile()] == ["encoder/maelm/weights", "log"]


@pytest.mark.slow
def test_an_encoder_goes_on_from_the_weights_of_its_last_part(tmp_path: Path) -> None:
    """On another machine, where only the folder with the weights is left."""
    data, output = tmp_path / "data", tmp_path / "encoder"
    write_corpus(tmp_path / "text.txt", 100)
    prepare = ["maelm", "prepare", "corpus", str(tmp_path / "text.txt"), "--output", str(data), "--workers", "1"]
    run([*prepare, "--vocabulary-size", "300", "--valid-fraction", "0.1"])
    words = [
        sys.executable,
        str(SCRIPT.with_name("encoder.py")),
        "--data",
        str(data),
        "--method",
        "mlm",
        "--device",
        "cpu",
    ]
    words += ["--output", str(output), "--precision", "fp32"]
    for number, flops in enumerate(("3e8", "6e8"), 1):
        subprocess.run([*words, "--flops", flops, "--runs", str(tmp_path / str(number))], check=True, timeout=600)
        parts = json.loads((output / "mlm.json").read_text())
        assert len(parts) == number and parts[-1]["updates"] == parts[-1]["of"] > 5
        assert sum(part["flops"] for part in parts) == pytest.approx(float(flops))
    log = (tmp_path / "2" / "mlm_2" / "training.log").read_text()
    assert "--finetune-from-model " in log and "--masked-input kept" in log
