"""The README's commands and Python, in their order, in one folder; only what makes them long is changed.

Output that an encoder of the package decides is compared with what the README shows.
"""

import csv
import itertools
import random
import re
import shlex
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from interop.importing import sources

from end_to_end.toy import ROOT, TOPICS, run, sentence, write_corpus

# A command of the README, or the beginning of one -> why it is not run here.
NOT_RUN = {
    "bash examples/quickstart/run.sh": "tests/examples/test_quickstart.py runs it on little text",
    "bash scripts/check.sh": "it runs this test",
    "bash scripts/setup.sh hf && source .venv/bin/activate": "the tests run in that environment",
    "git clone REPOSITORY && cd fairseq_maelm": "the tests run in a clone",
}
# What makes a command long, or needs the network -> what is run instead.
SHORTER = {
    "--preset uncased": "--preset uncased --vocabulary-size 400 --valid-fraction 0.1 --workers 1",
    "--recipe modern_17m": "--recipe modern_17m --gpus 0 --set max-update=4 batch-sequences=4 sequences-per-gpu=4",
    "--total-num-update 20000 --max-update 20000": "--total-num-update 2 --max-update 2 --cpu --tokens-per-sample 64",
    "--max-tokens 8192": "--max-tokens 1024",
    "maelm finetune task": "maelm finetune task --gpus 0 --epochs 1",
    "answerdotai/ModernBERT-base --download": "published",
    "--vocabulary base --output text": "--vocabulary base --output text --valid-fraction 0.1 --workers 1",
    "--checkpoint base --output adapted": "--checkpoint base --output adapted --gpus 0 --set max-update=4",
}


def blocks() -> list[str]:
    """Return the README's indented blocks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [dedent(block).strip("\n") for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)]


def commands(block: str) -> list[str]:
    """Return the commands of a block, without comments and without line breaks inside."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [re.sub(r"\s+# .*", "", line) for line in lines if re.match(r"(maelm|fairseq-train|bash|source|git) ", line)]


def shown_output(block: str, command: str) -> list[str]:
    """Return the lines that a block shows as the output of its only command."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line.strip() for line in lines if line.strip() and line != command] if command in lines else []


def shape_of_comment(block: str) -> tuple[int, ...]:
    """Return the shape of the states that a comment shows."""
    return tuple(map(int, re.search(r"states = .*# \[([\d, ]+)\]", block)[1].split(",")))


def assert_shown(shown: list[str], output: str) -> None:
    """Compare lines word by word, but for the log; numbers may differ by rounding."""
    printed = [line.split() for line in output.splitlines() if line.strip() and " | " not in line]
    expected = [line.split() for line in shown]
    assert list(map(len, expected)) == list(map(len, printed)), output
    for word, found in zip(itertools.chain(*expected), itertools.chain(*printed)):
        assert word == found or abs(float(word) - float(found)) <= 0.002, output


def write_reviews(path: Path, rows: int, seed: int) -> None:
    """Write a table of sentences and their topics under the names that the README uses."""
    generator = random.Random(seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "opinion"])
        for _ in range(rows):
            topic = generator.choice(sorted(TOPICS))
            writer.writerow([sentence(topic, generator), topic])


def run_shortened(command: str, folder: Path, unused: set[str]) -> str:
    """Run a command with what is shorter in the place of what is long."""
    for long, short in SHORTER.items():
        if long in command:
            command = command.replace(long, short)
            unused.discard(long)
    if "$(maelm user-dir)" in command:
        command = command.replace("$(maelm user-dir)", run(["maelm", "user-dir"]).strip())
    return run(shlex.split(command), cwd=folder)


def test_the_readme_fits_on_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    # A code line beyond 100 characters has to be scrolled on GitHub.
    assert len(lines) <= 110 and not [line for line in lines if line.startswith("    ") and len(line) > 100]


@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "text.txt", 80)
    sources.modernbert_folder(tmp_path / "published")
    write_reviews(tmp_path / "reviews.csv", 48, seed=1)
    write_reviews(tmp_path / "new_reviews.csv", 10, seed=2)
    monkeypatch.chdir(tmp_path)
    unused, outputs, not_run = set(SHORTER), {}, set()
    for block in blocks():
        if block.startswith("from fairseq_maelm import"):
            names: dict[str, Any] = {}
            exec(compile(block, "README.md", "exec"), names)
            assert tuple(names["states"].shape) == shape_of_comment(block)
        for command in commands(block):
            if command in NOT_RUN:
                not_run.add(command)
            else:
                outputs[command] = run_shortened(command, tmp_path, unused)
                if command.startswith("maelm fill"):
                    assert_shown(shown_output(block, command), outputs[command])
    assert not unused and not_run == set(NOT_RUN), "the README does not have these commands any more"
    assert len(outputs) == 11
    filled = next(output for command, output in outputs.items() if command.startswith("maelm fill"))
    assert [best.token for best in names["words"][0]] == re.findall(r"mask 1 +[.0-9]+ +(\S+)", filled)
    predicted = next(output for command, output in outputs.items() if command.startswith("maelm predict"))
    assert set(re.findall(r"^(\w+)\t0\.\d+$", predicted, re.MULTILINE)) <= set(TOPICS)
    assert len(re.findall(r"^\w+\t[01]\.\d+\t", predicted, re.MULTILINE)) == 10
