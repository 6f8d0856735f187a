"""Two doors, one run: what ``fairseq-train`` and ``fairseq-hydra-train`` do with the same recipe."""

from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.toy import ROOT, USER_DIR, losses, run, train_log
from fairseq_maelm.models.sizes import SIZES

PRETRAINING = ROOT / "examples" / "pretraining"
UPDATES = 5


def through_shell(data: Path, save_dir: Path) -> str:
    """Run a few updates of the recipe tiny.sh."""
    return run(
        ["bash", PRETRAINING / "tiny.sh", "--max-update", UPDATES, "--log-interval", 1, "--update-freq", 2],
        environment={"DATA": str(data), "SAVE_DIR": str(save_dir), "GPUS": "0"},
    )


def through_hydra(data: Path, save_dir: Path, config_folder: Path, name: str, *overrides: str) -> str:
    """Run a few updates of a YAML file."""
    save_dir.mkdir()
    return run(
        ["fairseq-hydra-train", "--config-dir", config_folder, "--config-name", name]
        + [f"task.data={data}", f"checkpoint.save_dir={save_dir}", f"common.user_dir={USER_DIR}"]
        + [f"optimization.max_update={UPDATES}", "optimization.update_freq=[2]", "common.log_interval=1", *overrides],
        cwd=save_dir,
    )


def parameters(save_dir: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a run's last checkpoint."""
    state: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return state["model"]


@pytest.mark.slow
def test_yaml_trains_as_the_recipe_does(toy_data: Path, tmp_path: Path) -> None:
    shell = through_shell(toy_data, tmp_path / "shell")
    hydra = through_hydra(toy_data, tmp_path / "hydra", PRETRAINING / "config", "tiny")
    metrics = [losses(output, "train_inner", name) for output in (shell, hydra) for name in ("loss", "gnorm", "lr")]
    assert len(metrics[0]) == UPDATES
    assert metrics[:3] == metrics[3:]
    assert losses(shell, "valid") == losses(hydra, "valid") != []
    from_shell, from_hydra = parameters(tmp_path / "shell"), parameters(tmp_path / "hydra")
    assert from_shell.keys() == from_hydra.keys()
    assert all(torch.equal(tensor, from_hydra[name]) for name, tensor in from_shell.items())
    # Hydra's habits, which the YAML turns off: no files of its own where the command was given.
    others = {path.name for path in (tmp_path / "hydra").iterdir() if path.suffix != ".pt"}
    assert others == {"dict.txt", "sentencepiece.bpe.model"}


@pytest.mark.parametrize("model", ["{_name: maelm_tiny}", "maelm_tiny"])
def test_name_alone_builds_that_size(model: str, toy_data: Path, tmp_path: Path) -> None:
    """fairseq itself would build the default size here without a word."""
    (tmp_path / "alone.yaml").write_text(
        f"""
common: {{cpu: true, reset_logging: true, log_format: json}}
task: {{_name: maelm, data: "???", tokens_per_sample: 64}}
criterion: maelm
dataset: {{batch_size: 4, num_workers: 0, disable_validation: true}}
optimizer: {{_name: fused_adamw}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001]}}
checkpoint: {{save_dir: "???"}}
model: {model}
"""
    )
    output = through_hydra(toy_data, tmp_path / "run", tmp_path, "alone", "optimization.max_update=1")
    assert train_log(output)[-1]["train_num_updates"] == 1
    # The numbers of the size are in the checkpoint, which loads as it is when the size has others one day.
    config = torch.load(tmp_path / "run" / "checkpoint_last.pt")["cfg"]["model"]
    assert {name: config[name] for name in SIZES["maelm_tiny"]} == SIZES["maelm_tiny"]
    tensors = parameters(tmp_path / "run")
    assert tensors["encoder.embed_tokens.weight"].shape[1] == 128
    assert {name.split(".")[2] for name in tensors if name.startswith("encoder.layers.")} == {"0", "1"}
