"""Narrow runs that save often, and what is left in their folders."""

import hashlib
import re
from pathlib import Path
from typing import Any

from end_to_end.small import differences, results, training

# Small files, so that every byte counts and none takes time.
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
