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
from fairseq_maelm.fairseq_fixes import loading
from fairseq_maelm.models import hub

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


PAYLOADS = {
    "shell command": lambda marker: RunsCode(os.system, f"touch {marker}"),
    "expression": lambda marker: RunsCode(eval, f"open({str(marker)!r}, 'w').close()"),
    "function call": lambda marker: RunsCode(Path.touch, marker),
}
PLACES = {
    "on top": lambda payload: checkpoint(surprise=payload),
    "in the allowed namespace": lambda payload: checkpoint(cfg={"criterion": argparse.Namespace(x=payload)}),
    "among the weights": lambda payload: checkpoint(model={"encoder.embed_tokens.weight": payload}),
    "instead of everything": lambda payload: payload,
}


def test_an_honest_checkpoint_loads_by_default(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(), path)
    # Default arguments: the test fails if weights_only were off, or on without the type that is allowed.
    loaded = torch.load(path)
    assert loaded["cfg"]["criterion"] == argparse.Namespace(criterion="maelm")
    through_fairseq = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    for name, tensor in model_of().state_dict().items():
        torch.testing.assert_close(through_fairseq["model"][name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_smuggled_code_is_refused_and_not_run(tmp_path, payload, place):
    marker, path = tmp_path / "code-has-run", tmp_path / "checkpoint.pt"
    torch.save(PLACES[place](PAYLOADS[payload](marker)), path)
    with pytest.raises(pickle.UnpicklingError, match="(?i)unsupported (global|class)"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    with pytest.raises(ValueError, match="which is not plain data and is not loaded"):
        hub.load(str(tmp_path), path.name, str(tmp_path))
    assert not marker.exists()


@pytest.mark.parametrize("old_format", [True, False])
def test_the_payload_is_live(tmp_path, old_format):
    """Shows that the tests above would notice: whoever turns weights_only off runs the code, in both file formats."""
    marker, path = tmp_path / "code-has-run", tmp_path / "checkpoint.pt"
    state = PLACES["on top"](PAYLOADS["shell command"](marker))
    torch.save(state, path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_a_fairseq_that_would_run_code_loads_plain_data(tmp_path, monkeypatch):
    """fairseq's main branch passes weights_only=False."""
    marker, path = tmp_path / "code-has-run", tmp_path / "checkpoint.pt"
    torch.save(PLACES["on top"](PAYLOADS["shell command"](marker)), path)
    monkeypatch.setattr(loading, "_load_otherwise", lambda path, *_: torch.load(path, weights_only=False))
    with pytest.raises(pickle.UnpicklingError, match="(?i)unsupported (global|class)"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not marker.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


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
