"""The schedule of the modern recipes against fairseq's tri_stage."""

import math

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler import build_lr_scheduler
from omegaconf import OmegaConf

from fairseq_maelm import registration

LR, UPDATES = 0.5, 100
OPTIONS = {"phase_ratio": [0.1, 0.5, 0.4], "init_lr_scale": 0.01, "final_lr_scale": 0.02}


def rates(name: str) -> list[float]:
    """Return the rates that the optimizer gets, from the one before the first update to one after the last."""
    registration.register()
    optimizer = FairseqAdam(
        OmegaConf.structured(FairseqAdamConfig(lr=[LR], tpu=False)), [torch.nn.Parameter(torch.zeros(1))]
    )
    schedule = build_lr_scheduler(
        OmegaConf.create({"_name": name, "lr": [LR], "max_update": UPDATES, **OPTIONS}), optimizer
    )
    found = []
    for update in range(UPDATES + 2):
        assert schedule.step_update(update) == optimizer.get_lr()
        found.append(optimizer.get_lr())
    return found


def test_only_the_fall_differs_from_fairseq() -> None:
    linear, exponential = rates("tri_stage_linear"), rates("tri_stage")
    assert linear[:61] == exponential[:61] and linear[10] == linear[60] == LR
    assert linear[80] == pytest.approx(LR * 0.51) and exponential[80] == pytest.approx(LR * math.sqrt(0.02))
    steps = {round(before - after, 12) for before, after in zip(linear[60:100], linear[61:101], strict=True)}
    assert len(steps) == 1
    assert linear[100] == pytest.approx(LR * 0.02) and linear[100:] == pytest.approx(exponential[100:])
