"""Checkpoints load without running code: torch's weights_only stays on, and one harmless type is allowed besides."""

import argparse
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from robustness.hostile import RunsCode
from support import model_of

import fairseq_maelm
from fairseq_maelm.checkpoints.plain_data import CheckpointError
from fairseq_maelm.fairseq_fixes import loading

ROOT = Path(fairseq_maelm.__file__).resolve().parent.parent


def checkpoint(**changes: Any) -> dict[str, Any]:
    """What fairseq's trainer saves, in small."""
    return {
        "args": None,
        "cfg": {"criterion": argparse.Namespace(criterion="maelm"), "task": {"_name": "maelm", "seed": 1}},
        "model": model_of().state_dict(),
        "optimizer_history": [
            {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {"best": None}, "num_updates": 3}
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 3}},
        **changes,
    }


def write_code(path: Path) -> Path:
    """Write a checkpoint that runs a command if it is loaded without ``weights_only``, and return what that makes."""
    marker = path.with_name("code-has-run")
    torch.save(checkpoint(surprise=RunsCode(os.system, f"touch {marker}")), path)
    return marker


def test_an_honest_checkpoint_loads_by_default(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(), path)
    # Default arguments: the test fails if weights_only were off, or on without the type that is allowed.
    loaded = torch.load(path)
    assert loaded["cfg"]["criterion"] == argparse.Namespace(criterion="maelm")
    through_fairseq = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    for name, tensor in model_of().state_dict().items():
        torch.testing.assert_close(through_fairseq["model"][name], tensor, rtol=0, atol=0)


def test_a_fairseq_that_would_run_code_loads_plain_data(tmp_path, monkeypatch):
    """fairseq's main branch passes weights_only=False; it is overridden even without the first look at the file."""
    path = tmp_path / "checkpoint.pt"
    marker = write_code(path)
    with pytest.raises(CheckpointError, match="posix.system, which is not plain data and is not loaded"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    monkeypatch.setattr(loading, "find_danger", lambda path: None)
    monkeypatch.setattr(loading, "_load_otherwise", lambda path, *_: torch.load(path, weights_only=False))
    with pytest.raises(pickle.UnpicklingError, match="(?i)unsupported (global|class)"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not marker.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    torch.load(path, weights_only=False)
    assert marker.exists(), "the code is live"


def test_the_plugin_allows_one_type_more_than_torch():
    """In a fresh process, since other packages of a test run may have allowed types as well."""
    script = """
import json, torch
import fairseq
before = {str(entry) for entry in torch.serialization.get_safe_globals()}
import fairseq_maelm
fairseq_maelm.register()
after = {str(entry) for entry in torch.serialization.get_safe_globals()}
print("types:" + json.dumps(sorted(after - before)))
"""
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("types:"))
    assert json.loads(line.removeprefix("types:")) == [str(argparse.Namespace)]
