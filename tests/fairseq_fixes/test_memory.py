"""A training process on a CPU keeps the memory that it frees, unless its user chose an allocator."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fairseq_maelm.fairseq_fixes import memory, resuming

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

# Prints the pages that the system cleared in twenty rounds of allocating and freeing 128 MB, after four that grow the
# heap.
SCRIPT = """
import resource, sys
import torch
from fairseq_maelm.fairseq_fixes.memory import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
for number in range(24):
    if number == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**21) for _ in range(8)]
    large = torch.ones(2**24)
    del blocks, large
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(word: str, **variables: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if name not in memory._USERS_CHOICE}
    command = [sys.executable, "-c", SCRIPT, word]
    output = subprocess.run(
        command, env={**environment, **variables}, check=True, capture_output=True, text=True
    ).stdout.split()
    return output[0], int(output[1])


def test_freed_memory_is_not_cleared_again() -> None:
    left_alone, kept = run("leave"), run("keep")
    assert kept[0] == "True"
    assert left_alone[1] > 20 * 2**26 // os.sysconf("SC_PAGE_SIZE") / 2, "the system clears what it gets back"
    assert kept[1] < left_alone[1] / 20


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_"])
def test_a_users_choice_is_left_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert memory.keep_freed_memory.__wrapped__() is False


@pytest.mark.parametrize(("device", "calls"), [("cpu", 1), ("cuda", 0)])
def test_a_training_on_a_cpu_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch, device: str, calls: int) -> None:
    """Every run looks for a checkpoint first, whatever its task and its optimizer."""
    called: list[bool] = []
    monkeypatch.setattr(resuming, "keep_freed_memory", lambda: called.append(True))
    monkeypatch.setattr(resuming, "is_local", lambda path: False)
    monkeypatch.setattr(resuming, "_load_checkpoint", lambda cfg, trainer: (None, None))
    resuming._load(SimpleNamespace(save_dir="run"), SimpleNamespace(device=SimpleNamespace(type=device)))
    assert len(called) == calls
