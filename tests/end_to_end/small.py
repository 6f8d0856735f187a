"""Small data cut from the toy corpus, narrow runs that save often, and the comparison of runs."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from end_to_end.toy import TINY_TRAINING, command_environment, resolve, train_log
from fairseq_maelm.launch.save_folder import LOCK_FILE

# The end-of-sentence symbol alone stands between documents.
BLANK_LINE = torch.tensor([2])

# Metrics that are not results: they measure time.
OF_TIME = {"wps", "ups", "wall", "train_wall"}
OF_TIME |= {f"train_{name}" for name in OF_TIME} | {f"valid_{name}" for name in OF_TIME}


def cut(toy_data: Path, folder: Path, lines: int, first: int = 0, shortest: int = 10, longest: int = 60) -> Path:
    """Write a train split of some lines of the toy corpus, each a separate document, by fairseq's own writer.

    With --tokens-per-sample 64 every line is one sequence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        shutil.copy(toy_data / name, folder)
    whole = MMapIndexedDataset(str(toy_data / "train"))
    chosen = [index for index, size in enumerate(whole.sizes) if shortest <= size <= longest][first : first + lines]
    assert len(chosen) == lines
    write_split(folder / "train", (item for index in chosen for item in (whole[index], BLANK_LINE)))
    return folder


def write_split(prefix: Path, items: Iterable[torch.Tensor]) -> None:
    """Write ``prefix``.bin and ``prefix``.idx, as fairseq-preprocess does."""
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for item in items:
        builder.add_item(item)
    builder.finalize(f"{prefix}.idx")


def training(data: Any, save_dir: Path, *options: Any) -> list[Any]:
    """The command of a short run on ``cut`` data; dropout and attention dropout are on, as by default."""
    return ["fairseq-train", data, *TINY_TRAINING, "--disable-validation", "--save-dir", save_dir, *options]


def updates(output: str) -> list[dict[str, Any]]:
    """What was logged after each update and each epoch, without times."""
    entries = [entry for entry in train_log(output) if entry["split"] in ("train_inner", "train")]
    return [{name: value for name, value in entry.items() if name not in OF_TIME} for entry in entries]


def results(path: Path) -> dict[str, Any]:
    """All of a checkpoint that is a result of training: weights, optimizer, learning rate, place in the data, EMA."""
    state = torch.load(path)
    return {
        "model": state["model"],
        "optimizer": state["last_optimizer_state"],
        "learning rate": state["optimizer_history"][-1]["lr_scheduler_state"],
        "updates": state["optimizer_history"][-1]["num_updates"],
        "place": state["extra_state"]["train_iterator"],
        "average": state["extra_state"].get("ema"),
    }


def differences(first: Any, second: Any, name: str = "") -> list[str]:
    """Name everything that is not equal bit for bit in two nested results."""
    if torch.is_tensor(first):
        return [] if first.dtype == second.dtype and torch.equal(first, second) else [name]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{name}: {sorted(map(str, first.keys() ^ second.keys()))}"]
        return [line for key in first for line in differences(first[key], second[key], f"{name}/{key}")]
    if isinstance(first, Sequence) and not isinstance(first, str):
        if len(first) != len(second):
            return [f"{name}: {len(first)} and {len(second)} entries"]
        pairs = zip(first, second)
        return [line for number, pair in enumerate(pairs) for line in differences(*pair, f"{name}/{number}")]
    return [] if first == second else [f"{name}: {first} and {second}"]


# Numbers of the checkpoint ``pretrained`` that are not the architecture's.
OWN_SIZES: list[Any] = ["--max-positions", 96, "--relative-num-buckets", 16, "--decoder-layers", 2]


# Narrow runs have small files, so that every byte counts and none takes time.
NARROW = ["--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 32, "--decoder-layers", 1]
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
# 10 batches make an epoch; a save every 4 updates.
UPDATES, LAST_BUT_ONE = 14, "checkpoint_2_12.pt"


def narrow(data: Path, save_dir: Path, *options: Any, updates: int = UPDATES) -> list[Any]:
    """The command of a run that saves after 4, 8, 10 (the epoch), 12 and 14 updates."""
    return training(data, save_dir, *NARROW, "--max-update", updates, "--save-interval-updates", 4, *options)


def contents(folder: Path) -> dict[str, str]:
    """The sum of each file in a folder, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def assert_equal_end(folder: Path, expected: Path) -> None:
    """The last checkpoints of two folders hold equal results, bit for bit."""
    assert differences(results(folder / LAST), results(expected / LAST)) == []


def refusals(output: str) -> list[str]:
    """The one line of a command that was refused, after which nothing comes."""
    assert "Traceback" not in output, output[-3000:]
    lines = re.findall(r"^fairseq-train: error: (.*)$", output, re.MULTILINE)
    assert len(lines) == 1 and output.rstrip().endswith(lines[0]), output[-3000:]
    return lines


def logged(output: str, words: str) -> list[str]:
    """The lines of a log that contain some words."""
    return [line for line in output.splitlines() if words in line]


def start(command: Sequence[Any], log: Path) -> "subprocess.Popen[bytes]":
    """Start a command as ``run`` does and leave it running."""
    words = resolve([str(word) for word in command])
    with open(log, "wb") as stream:
        return subprocess.Popen(
            words, stdout=stream, stderr=subprocess.STDOUT, env=command_environment(), cwd=log.parent
        )


def kill_holder(save_dir: Path, started: "subprocess.Popen[bytes]") -> int:
    """Kill the training that has a save folder, as ``kill -9`` does, and return the number of its process."""
    process: int = json.loads((save_dir / LOCK_FILE).read_text(encoding="utf-8"))["process"]
    os.kill(process, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    return process


def wait_until(reached: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(12_000):
        if reached():
            return
        assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.02)
    pytest.fail(log.read_text(encoding="utf-8")[-3000:])
