"""A training process on a CPU keeps the memory that it frees, but no holes, unless its user chose an allocator."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fairseq_maelm.fairseq_fixes import processes, resuming
from fairseq_maelm.launch import memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

# Prints the pages that the system cleared in ROUNDS of allocating and freeing 128 MB, after four that grow the heap.
ROUNDS = 6
SCRIPT = """
import resource, sys
import torch
from fairseq_maelm.launch.memory import keep_freed_memory, return_freed_memory
calls = {"keep": keep_freed_memory, "return": return_freed_memory, "leave": lambda: None}
for word in sys.argv[1].split("+"):
    result = calls[word]()
print(result)
for number in range(int(sys.argv[2])):
    if number == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**21) for _ in range(8)]
    large = torch.ones(2**24)
    del blocks, large
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(word: str, **variables: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if name not in memory._USERS_CHOICE}
    command = [sys.executable, "-c", SCRIPT, word, str(4 + ROUNDS)]
    output = subprocess.run(
        command, env={**environment, **variables}, check=True, capture_output=True, text=True
    ).stdout.split()
    return output[0], int(output[1])


def test_freed_memory_is_not_cleared_again() -> None:
    left_alone, kept = run("leave"), run("keep")
    assert kept[0] == "True"
    assert left_alone[1] > ROUNDS * 2**26 // os.sysconf("SC_PAGE_SIZE") / 2, "the system clears what it gets back"
    assert kept[1] < left_alone[1] / 10


def test_all_large_blocks_are_returned() -> None:
    returned, cleared = run("keep+return")
    assert returned == "True" and cleared >= ROUNDS * 2**27 // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_"])
def test_a_users_choice_is_left_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert memory.changeable_allocator.__wrapped__() is None


@pytest.mark.parametrize(
    ("device", "length", "most_tokens", "sequences", "calls"),
    [
        ("cuda", 512, 4096, None, []),
        ("cpu", 8192, 16384, None, ["keep"]),
        ("cpu", 8192, 8192, None, ["return"]),
        ("cpu", 8192, None, 1, ["return"]),
        ("cpu", 512, 512, None, ["keep"]),
        ("cpu", None, 4096, None, ["keep"]),
    ],
)
def test_a_training_on_a_cpu_keeps_freed_memory_unless_sequences_are_long(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    length: int | None,
    most_tokens: int | None,
    sequences: int | None,
    calls: list[str],
) -> None:
    """Every run looks for a checkpoint first, whatever its task and its optimizer."""
    called: list[str] = []
    for word in ("keep", "return"):
        monkeypatch.setattr(memory, f"{word}_freed_memory", lambda word=word: called.append(word))
    monkeypatch.setattr(resuming, "is_local", lambda path: False)
    monkeypatch.setattr(resuming, "_load_checkpoint", lambda cfg, trainer: (None, None))
    config = SimpleNamespace(
        task=SimpleNamespace(**({} if length is None else {"tokens_per_sample": length})),
        dataset=SimpleNamespace(max_tokens=most_tokens, batch_size=sequences),
    )
    resuming._load(SimpleNamespace(save_dir="run"), SimpleNamespace(device=SimpleNamespace(type=device), cfg=config))
    assert called == calls


# Prints the resident MB before and after every second block of 1 MB is freed, and after holes are given back.
HOLES = """
import numpy, resource
from pathlib import Path
from fairseq_maelm.launch.memory import give_back_unused_memory, keep_freed_memory
keep_freed_memory()
def show():
    print(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20)
blocks = [numpy.ones(2**17) for _ in range(400)]
show()
del blocks[::2]
show()
give_back_unused_memory()
show()
assert all((block == 1).all() for block in blocks)
"""


def test_holes_in_the_heap_are_given_back() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in memory._USERS_CHOICE}
    command = [sys.executable, "-c", HOLES]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    full, freed, given_back = map(int, output.split())
    assert freed > full - 50, "freed memory is kept"
    assert given_back < full - 150


@pytest.mark.parametrize(("device", "seconds", "calls"), [("cpu", 121, 1), ("cpu", 119, 0), ("cuda", 121, 0)])
def test_holes_are_given_back_every_two_minutes(
    monkeypatch: pytest.MonkeyPatch, device: str, seconds: int, calls: int
) -> None:
    called: list[str] = []
    monkeypatch.setattr(processes, "_given_back", 0.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: float(seconds)))
    monkeypatch.setattr(processes, "give_back_unused_memory", lambda: called.append("given back"))
    monkeypatch.setattr(processes, "_set_num_updates", lambda trainer, updates: called.append(str(updates)))
    trainer = SimpleNamespace(device=SimpleNamespace(type=device))
    for updates in (7, 8):
        processes._count_update(trainer, updates)
    assert called == ["7", *["given back"] * calls, "8"]
