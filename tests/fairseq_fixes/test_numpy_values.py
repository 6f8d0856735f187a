"""A checkpoint can be loaded although fairseq's metrics are of numpy's types."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics

import fairseq_maelm
from fairseq_maelm.checkpoints.integrity import find_damage

fairseq_maelm.register()


def test_numbers_become_python_s_and_meters_of_arrays_are_left_out(tmp_path: Path) -> None:
    metrics.reset()
    with metrics.aggregate("valid"):
        metrics.log_scalar("loss", torch.tensor(2.0), round=3)
        metrics.log_scalar("share", np.float32(0.5))
        metrics.log_scalar("_bleu_counts", np.array([3, 1, 0, 0]))
    average = {"weight": torch.ones(3)}
    best = np.float64(61.5)
    state: dict[str, Any] = {
        "model": {"weight": torch.zeros(3)},
        "optimizer_history": [{"num_updates": 4, "lr_scheduler_state": {"best": best, "last_epoch": 1}}],
        "last_optimizer_state": {"state": {}, "param_groups": []},
        "extra_state": {
            "train_iterator": {"epoch": 2, "iterations_in_epoch": 0},
            "metrics": metrics.state_dict(),
            "early_stopping": {"best": best, "num_runs": 0},
            "val_loss": best,
            "best": best,
            "ema": average,
        },
    }
    path = tmp_path / "checkpoint_last.pt"
    checkpoint_utils.torch_persistent_save(state, str(path))
    assert find_damage(path) is None
    assert state["extra_state"]["best"] is best, "the caller's state is not changed"
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    extra = loaded["extra_state"]
    places = extra, extra["early_stopping"], loaded["optimizer_history"][0]["lr_scheduler_state"]
    assert [(type(each["best"]), each["best"]) for each in places] == [(float, 61.5)] * 3
    assert torch.equal(extra["ema"]["weight"], average["weight"])
    metrics.reset()
    metrics.load_state_dict(extra["metrics"])
    assert metrics.get_smoothed_values("valid") == {"loss": 2.0, "share": 0.5}
