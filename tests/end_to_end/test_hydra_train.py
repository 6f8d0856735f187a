"""The other way to train: what ``fairseq-hydra-train`` makes of a file that names our task and model."""

import pytest
import torch
from omegaconf import OmegaConf

from end_to_end.toy import USER_DIR, run, train_log
from fairseq_maelm.architecture.encoder_options import SIZES
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig

ALONE = """
common: {cpu: true, reset_logging: true, log_format: json}
task: {_name: maelm, data: "???", tokens_per_sample: 64}
criterion: maelm
dataset: {batch_size: 4, num_workers: 0, disable_validation: true}
optimizer: {_name: fused_adamw}
lr_scheduler: {_name: fixed}
optimization: {lr: [0.001], max_update: 1}
checkpoint: {save_dir: "???"}
"""


def test_name_alone_builds_that_size(toy_data, tmp_path):
    """fairseq itself would build the default size here without a word."""
    (tmp_path / "alone.yaml").write_text(f"{ALONE}model: maelm_tiny\n")
    (tmp_path / "run").mkdir()
    command = ["fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "alone", f"task.data={toy_data}"]
    command += [f"checkpoint.save_dir={tmp_path / 'run'}", f"common.user_dir={USER_DIR}"]
    output = run(command, cwd=tmp_path / "run")
    assert train_log(output)[-1]["train_num_updates"] == 1
    # The numbers of the size are in the checkpoint, which loads as it is when the size has others one day.
    state = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    config, tensors = state["cfg"]["model"], state["model"]
    assert {name: config[name] for name in SIZES["maelm_tiny"]} == SIZES["maelm_tiny"]
    assert tensors["encoder.embed_tokens.weight"].shape[1] == 128
    assert {name.split(".")[2] for name in tensors if name.startswith("encoder.layers.")} == {"0", "1"}


@pytest.mark.parametrize("model", ["maelm_huge", OmegaConf.create({"_name": "maelm_huge"})])
def test_unknown_size_in_yaml(model, toy_data):
    """fairseq-hydra-train has no list of choices; fairseq itself would stop with a KeyError about '_name'."""
    config = OmegaConf.structured(MaelmTaskConfig(data=str(toy_data)))
    config.seed = 1
    with pytest.raises(ValueError, match="no model or size 'maelm_huge'; choose one of .*maelm_base"):
        MaelmTask.setup_task(config).build_model(model)
