"""Programs on the GPU made of fake tensors that benchmarks/fake_gpu plugs in."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
needs_fake_gpu = pytest.mark.skipif(
    torch.version.cuda is not None or shutil.which("g++") is None or importlib.util.find_spec("triton") is None,
    reason="fake GPUs need a torch that was built for CPUs, g++ and triton",
)


def run_program(*words: Any) -> str:
    """Run Python in a separate process, as a fake GPU replaces parts of torch; return its output."""
    path = os.pathsep.join([str(BENCHMARKS.parent), str(BENCHMARKS)])
    command = [sys.executable, *map(str, words)]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout
