"""``fused_adamw`` is torch's AdamW in fairseq's machinery; it and fairseq's ``adam`` continue each other."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fairseq_optimizer import FairseqOptimizer
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig, known_state

SHAPES = ((7, 5), (5,), (), (3, 4, 2), (1000,))
# A small epsilon: torch adds it after the bias correction, fairseq before.
OPTIONS = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-15, "weight_decay": 0.1, "lr": [1e-2]}
STEPS = 200
# What rounding comes to after that many updates of parameters of about 1; in double precision it shows the formula.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def ours(params: list[nn.Parameter], **changes: Any) -> FusedAdamW:
    return FusedAdamW(FusedAdamWConfig(**{**OPTIONS, **changes}), params)


def fairseq_s(params: list[nn.Parameter]) -> FairseqAdam:
    return FairseqAdam(FairseqAdamConfig(**OPTIONS, use_old_adam=True, tpu=False), params)


def gradients(steps: int, first: int = 0) -> Iterator[list[Tensor | None]]:
    """Gradients of very different sizes; every third update one parameter has none."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        grads: list[Tensor | None] = [
            torch.randn(shape, generator=generator) * 10.0 ** (1 - step % 5) for shape in SHAPES
        ]
        grads[1] = None if step % 3 == 0 else grads[1]
        yield grads


def train(optimizer: FairseqOptimizer, params: list[nn.Parameter], steps: int = STEPS, first: int = 0) -> None:
    """Make updates with a learning rate that changes, as a schedule does."""
    for step, grads in enumerate(gradients(steps, first), first):
        optimizer.zero_grad()
        for param, grad in zip(params, grads):
            param.grad = None if grad is None else grad.to(param.dtype)
        optimizer.set_lr(1e-2 / (1 + step % 7))
        optimizer.step()


def distance(first: list[nn.Parameter], second: list[nn.Parameter]) -> float:
    return max(float((one.detach().double() - two.detach().double()).abs().max()) for one, two in zip(first, second))


# Updates


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_updates_are_fairseq_s(dtype: torch.dtype) -> None:
    first, second, start = parameters(dtype), parameters(dtype), parameters(dtype)
    train(ours(first), first)
    train(fairseq_s(second), second)
    assert distance(first, start) > 0.1
    assert distance(first, second) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_updated_in_single_precision(dtype: torch.dtype) -> None:
    first, second = parameters(dtype), parameters(dtype)
    one, two = ours(first), fairseq_s(second)
    train(one, first, 20)
    train(two, second, 20)
    assert all(state["exp_avg"].dtype == torch.float32 for state in one.optimizer.state.values())
    # Rounding may fall to the other side for single elements: one unit in the last place of numbers up to 4.
    assert distance(first, second) <= 4 * torch.finfo(dtype).eps


def test_epsilon_is_added_after_the_bias_correction() -> None:
    """Both corrected moments of a first gradient of 1 are 1."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    ours([param], adam_eps=1.0, weight_decay=0.0).step()
    assert param.item() == pytest.approx(-1e-2 / 2)


# Gradients


@pytest.mark.parametrize("factor", [1 / 1234.5, torch.tensor(0.37)], ids=["number", "tensor"])
@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e6])
def test_scaling_and_clipping_are_fairseq_s(factor: Any, max_norm: float) -> None:
    first, second = parameters(), parameters()
    one, two = ours(first), fairseq_s(second)
    for params in (first, second):
        for param, grad in zip(params, list(gradients(2))[0]):
            param.grad = grad
    norms = []
    for optimizer in (one, two):
        optimizer.multiply_grads(factor)
        norms.append(optimizer.clip_grad_norm(max_norm))
    assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-6)
    for mine, theirs in zip(first, second):
        if theirs.grad is None:
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-7)


def test_norm_is_that_of_all_processes() -> None:
    params = parameters()
    optimizer = ours(params)
    assert float(optimizer.clip_grad_norm(1.0)) == 0.0  # no gradient yet
    for param in params:
        param.grad = torch.ones_like(param)
    norm = optimizer.clip_grad_norm(1.0, lambda norm: 10 * norm)
    elements = sum(param.numel() for param in params)
    assert float(norm) == pytest.approx(10 * elements**0.5)
    assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(0.1, rel=1e-5)


def test_norm_of_half_precision_does_not_overflow() -> None:
    param = nn.Parameter(torch.zeros(100, dtype=torch.float16))
    param.grad = torch.full_like(param, 300.0)
    assert float(ours([param]).clip_grad_norm(0.0)) == pytest.approx(3000.0)


# Checkpoints


@pytest.mark.parametrize(("before", "after"), [(ours, fairseq_s), (fairseq_s, ours)], ids=["to adam", "from adam"])
def test_either_continues_what_the_other_began(before: Callable[..., Any], after: Callable[..., Any]) -> None:
    expected, params = parameters(torch.float64), parameters(torch.float64)
    train(fairseq_s(expected), expected)
    began = before(params)
    train(began, params, STEPS // 2)
    saved = copy.deepcopy(began.state_dict())
    continued = after(params)
    continued.load_state_dict(saved, {})
    train(continued, params, STEPS // 2, STEPS // 2)
    assert distance(params, expected) < TOLERANCE[torch.float64]
    # The trainer compares these names before it loads a state.
    assert type(began).__name__ == type(continued).__name__
    keys = [{name: type(value) for name, value in state.items()} for state in saved["state"].values()]
    assert keys == [{"step": int, "exp_avg": Tensor, "exp_avg_sq": Tensor}] * len(SHAPES)


def test_continued_is_never_stopped_bit_for_bit() -> None:
    expected, params = parameters(), parameters()
    train(ours(expected), expected, 50)
    first = ours(params)
    train(first, params, 20)
    second = ours(params)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, params, 30, 20)
    assert distance(params, expected) == 0.0


def test_state_of_apex_counts_updates_for_a_whole_group() -> None:
    params, expected = parameters(), parameters()
    began = ours(expected)
    train(began, expected, 2, 1)  # every parameter has been updated twice
    apex = copy.deepcopy(began.state_dict())
    for state in apex["state"].values():
        assert state.pop("step") == 2
    apex["param_groups"][0] |= {"step": 2, "bias_correction": True}
    optimizer = ours(params)
    optimizer.load_state_dict(apex)
    assert {state["step"] for state in optimizer.state_dict()["state"].values()} == {2}
    assert "step" not in optimizer.param_groups[0]


def test_counts_of_torch_are_understood() -> None:
    state = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": 0, "exp_avg_sq": 0}}, "param_groups": []}
    assert known_state(state)["state"][0]["step"] == 3


@pytest.mark.parametrize(
    "state",
    [
        {"step": 1, "momentum_buffer": 0},
        {"exp_avg": 0, "exp_avg_sq": 0},
        {"step": 1, "exp_avg": 0, "exp_avg_sq": 0, "x": 0},
    ],
)
def test_state_of_another_optimizer_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--reset-optimizer"):
        known_state({"state": {0: state}, "param_groups": [{"params": [0]}]})


# Inside fairseq


def fairseq_configuration(name: str, **own: Any) -> Any:
    own = own or {**OPTIONS, **({"use_old_adam": True, "tpu": False} if name == "adam" else {})}
    common = {"fp16_init_scale": 4, "fp16_scale_window": 256, "fp16_scale_tolerance": 0.0, "min_loss_scale": 1e-4}
    common |= {"threshold_loss_scale": None, "fp16_no_flatten_grads": True, "bf16": False}
    return OmegaConf.create({"common": common, "optimizer": {"_name": name, **own}})


@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_works_inside_fairseq_s_wrappers_for_half_precision(wrapper: Any) -> None:
    """Loss scaling, clipping and the copies in single precision are fairseq's; updates equal those with its adam."""
    trained = []
    for name in ("fused_adamw", "adam"):
        params = parameters(torch.float16)
        optimizer = wrapper.build_optimizer(fairseq_configuration(name), params)
        for step in range(6):
            optimizer.zero_grad()
            optimizer.backward(sum(((param.float() - 0.5) ** 2).sum() for param in params))
            optimizer.multiply_grads(1 / 8)
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            if step == 2:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = wrapper.build_optimizer(fairseq_configuration(name), params)
                optimizer.load_state_dict(saved)
        states = optimizer.state_dict()["state"].values()
        assert {state["exp_avg"].dtype for state in states} == {torch.float32}
        assert {state["step"] for state in states} == {6}
        assert optimizer.state_dict()["loss_scale"] == 4
        trained.append(params)
    assert distance(trained[0], parameters(torch.float16)) > 0.01
    assert distance(*trained) <= 4 * torch.finfo(torch.float16).eps


def test_takes_all_parameters_as_one_tensor() -> None:
    """fairseq's --fp16 on a GPU joins the copies in single precision to one, in a dictionary by device."""
    flat = nn.Parameter(torch.cat([param.detach().view(-1) for param in parameters()]))
    optimizer = build_optimizer(fairseq_configuration("fused_adamw").optimizer, [{0: flat}])
    assert isinstance(optimizer, FusedAdamW) and optimizer.supports_flat_params
    flat.grad = torch.ones_like(flat)
    before = flat.detach().clone()
    optimizer.step()
    assert bool((flat < before).any())
