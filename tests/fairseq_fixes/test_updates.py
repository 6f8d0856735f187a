"""With --amp, updates do not depend on the loss scale."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim import AMPOptimizer

import fairseq_maelm
from fairseq_maelm.optim.fused_adamw import FusedAdamW

fairseq_maelm.register()
GRADIENT = torch.tensor([1e-5, -2e-5, 4e-5])


def amp_optimizer(scale: float) -> tuple[AMPOptimizer, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(3))
    inner = FusedAdamW(SimpleNamespace(lr=[1.0], adam_betas=(0.9, 0.98), adam_eps=1e-6, weight_decay=0.0), [weight])
    common = SimpleNamespace(fp16_init_scale=scale, min_loss_scale=1e-4, amp_scale_window=None)
    optimizer: Any = AMPOptimizer(SimpleNamespace(optimizer=None, common=common), [weight], inner)
    # fairseq's own scaler needs a GPU.
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return optimizer, weight


def updated(scale: float, clip_norm: float) -> list[float]:
    """Return the weights after three updates."""
    optimizer, weight = amp_optimizer(scale)
    for number in range(3):
        optimizer.zero_grad()
        optimizer.backward((weight * GRADIENT * (1 + number)).sum())
        assert float(optimizer.clip_grad_norm(clip_norm)) == pytest.approx((1 + number) * float(GRADIENT.norm()))
        optimizer.step()
    return list(weight.tolist())


@pytest.mark.parametrize("clip_norm", [0.0, 1e-5])
def test_updates_do_not_depend_on_the_scale(clip_norm: float) -> None:
    expected = updated(1.0, clip_norm)
    assert min(map(abs, expected)) > 0.5
    for scale in (128.0, 65536.0):
        assert updated(scale, clip_norm) == pytest.approx(expected, rel=1e-5)


def test_an_overflow_halves_the_scale_and_changes_no_weight() -> None:
    optimizer, weight = amp_optimizer(128.0)
    optimizer.zero_grad()
    optimizer.backward((weight * torch.tensor([1.0, float("inf"), 1.0])).sum())
    assert not torch.isfinite(optimizer.clip_grad_norm(1.0))
    optimizer.step()
    assert weight.tolist() == [0.0] * 3 and optimizer.scaler.get_scale() == 64.0
