"""``muon`` is torch's Muon on hidden matrices and AdamW on all other parameters, inside fairseq's machinery."""

import copy
import math
from typing import Any

import pytest
import torch
from contracts.test_surface import model_of
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from omegaconf import OmegaConf
from optim.test_fused_adamw import distance, fairseq_configuration
from torch import Tensor, nn

from fairseq_maelm.modules.initialization import mark_parameters, matrices_in
from fairseq_maelm.optim import muon as implementation
from fairseq_maelm.optim.fused_adamw import adamw
from fairseq_maelm.optim.muon import FairseqMuon, MuonAdamW, MuonConfig, orthogonalize

LR = 1e-2
# Rows, columns and the number of matrices of hidden parameters: wide, tall, twice the same square, three at once.
HIDDEN = ((4, 6, 1), (6, 4, 1), (5, 5, 1), (5, 5, 1), (15, 5, 3))
OTHERS = ((7, 5), (5,))
OPTIONS = {"adam_betas": "(0.9, 0.95)", "adam_eps": 1e-8, "weight_decay": 0.1, "lr": [LR]}


def hidden(tensor: Tensor, matrices: int = 1) -> nn.Parameter:
    parameter = nn.Parameter(tensor)
    parameter.param_group, parameter.optim_overrides = "hidden", {"matrices": matrices}
    return parameter


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in [s[:2] for s in HIDDEN] + list(OTHERS)]
    first = [hidden(tensor, shape[2]) for tensor, shape in zip(drawn, HIDDEN)]
    return first + [nn.Parameter(tensor) for tensor in drawn[len(HIDDEN) :]]


def train(optimizer: Any, params: list[nn.Parameter], steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype) * 10.0 ** (1 - step % 3)
        optimizer.step()


@pytest.fixture
def in_dtype(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> torch.dtype:
    """Orthogonalize in a precision that does not depend on the machine."""
    monkeypatch.setattr(implementation, "_dtype_on", lambda device_type: request.param)
    return request.param


in_single = pytest.mark.parametrize("in_dtype", [torch.float32], indirect=True)
in_half = pytest.mark.parametrize("in_dtype", [torch.bfloat16], indirect=True)


# Updates


@pytest.mark.parametrize("tall", [False, True])
def test_orthogonalized_by_hand(tall: bool) -> None:
    """Singular values 3 and 4 are 0.6 and 0.8 of the norm; each goes through the polynomial five times."""
    expected = [0.6, 0.8]
    for _ in range(5):
        expected = [3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5 for x in expected]
    turned = torch.linalg.qr(torch.randn(3, 2, generator=torch.Generator().manual_seed(1)))[0].T
    given = torch.stack([torch.diag(torch.tensor([3.0, 4.0])) @ turned, torch.zeros(2, 3)])
    result = orthogonalize(given.mT).mT if tall else orthogonalize(given)
    torch.testing.assert_close(result[0], torch.diag(torch.tensor(expected)) @ turned, rtol=1e-4, atol=1e-5)
    assert not result[1].any()


@in_single
def test_one_update_by_hand(in_dtype: torch.dtype) -> None:
    """From rest both the momentum and Nesterov's form are a multiple of the gradient, which no norm sees."""
    start, grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 2.0], [-2.0, 0.0]])
    param = hidden(start.clone())
    param.grad = grad
    MuonAdamW([param], lr=0.1, weight_decay=0.5, lr_ratio=3.0).step()
    value = 2**-0.5
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    expected = start * (1 - 0.3 * 0.5) - 0.3 * 0.2 * math.sqrt(2) * value * grad / 2
    torch.testing.assert_close(param.detach(), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
@in_half
def test_updates_are_torch_s(in_dtype: torch.dtype) -> None:
    steps = 30
    first, second, start = parameters()[:4], parameters()[:4], parameters()[:4]
    train(MuonAdamW(first, lr=LR, weight_decay=0.1), first, steps)
    theirs = torch.optim.Muon(second, lr=LR, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    train(theirs, second, steps)
    assert distance(first, start) > 0.05
    # What rounding to bfloat16 comes to, in steps of 0.2 lr sqrt(6) and less.
    assert distance(first, second) < steps * 0.2 * LR * math.sqrt(6) * torch.finfo(torch.bfloat16).eps


@in_single
def test_matrices_in_one_parameter_are_orthogonalized_one_by_one(in_dtype: torch.dtype) -> None:
    whole = [parameters()[4]]
    parts = [hidden(part.clone()) for part in whole[0].detach().chunk(3)]
    train(MuonAdamW(whole), whole, 1)
    for part, grad in zip(parts, whole[0].grad.chunk(3)):
        part.grad = grad
    MuonAdamW(parts).step()
    assert distance(whole, [torch.cat(parts)]) < 1e-7


@in_single
def test_gradients_may_lie_in_any_order(in_dtype: torch.dtype) -> None:
    first, second = parameters(), parameters()
    train(MuonAdamW(first), first, 1)
    for param, like in zip(second[: len(HIDDEN)], first):
        param.grad = like.grad.T.contiguous().T
    MuonAdamW(second).step()
    assert distance(first[: len(HIDDEN)], second[: len(HIDDEN)]) < 1e-6


@in_single
def test_many_matrices_are_computed_in_portions(in_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = parameters(), parameters()
    train(MuonAdamW(first), first, 5)
    monkeypatch.setattr(implementation, "_ELEMENTS_TOGETHER", 1)
    train(MuonAdamW(second), second, 5)
    assert distance(first, second) < 1e-6


def test_other_parameters_are_adamw_s_and_only_matrices_decay() -> None:
    first, matrix, vector = parameters(), *parameters()[len(HIDDEN) :]
    optimizer = MuonAdamW(first, lr=LR, weight_decay=0.1)
    relatives = [adamw([matrix], lr=LR, weight_decay=0.1), adamw([vector], lr=LR, weight_decay=0.0)]
    for step in range(5):
        train(optimizer, first, 1, step)
        matrix.grad, vector.grad = (param.grad for param in first[len(HIDDEN) :])
        for relative in relatives:
            relative.step()
    assert distance(first[len(HIDDEN) :], [matrix, vector]) == 0.0


def test_parameters_without_gradients_stay() -> None:
    params = parameters()
    optimizer = MuonAdamW(params)
    train(optimizer, params[1:], 1)
    assert distance(params[:1], parameters()[:1]) == 0.0
    assert len(optimizer.state) == len(params) - 1


# Which parameters


@pytest.mark.parametrize("architecture", ["maelm_base_plus_plus", "maelm_modern_17m"])
def test_every_parameter_is_in_one_group(architecture: str) -> None:
    """Matrices of layers and of the prediction head are hidden; heads for fine-tuning are not."""
    model = model_of(architecture, pretraining=True)
    model.register_classification_head("head", num_classes=3)
    names = {param: name for name, param in model.named_parameters()}
    kinds = {group["kind"]: [names.pop(param) for param in group["params"]] for group in MuonAdamW(names).param_groups}
    assert not names
    shapes = dict(model.named_parameters())
    for name in kinds["hidden"]:
        assert (".layers." in name or name.startswith("lm_head.")) and name.endswith("weight"), name
        rows, columns = shapes[name].shape
        count = matrices_in(shapes[name])
        last = name.split(".")[-2]
        assert count == 3 if last == "qkv_proj" else count in (1, 2) and (count == 1 or last in ("fc1", "kv_proj")), (
            name
        )
        assert rows % count == 0 and (last != "qkv_proj" or rows == 3 * columns)
    assert all(shapes[name].ndim == 1 or "relative" in name for name in kinds["undecayed"])
    heads = {f"classification_heads.head.{layer}.weight" for layer in ("dense", "out_proj")}
    assert heads <= set(kinds["decayed"]) and "encoder.embed_tokens.weight" in kinds["decayed"]
    assert all(name in heads or ".embed_" in name for name in kinds["decayed"])


def test_matrices_that_share_a_parameter_are_counted() -> None:
    layer = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "kv_proj": nn.Linear(4, 8), "qkv_proj": nn.Linear(4, 12)})
    layer.update({"fc1": nn.Linear(4, 12), "fc2": nn.Linear(6, 4, bias=False)})  # gated
    mark_parameters(nn.ModuleList([layer]))
    assert {name: matrices_in(linear.weight) for name, linear in layer.items()} == {
        "q_proj": 1, "kv_proj": 2, "qkv_proj": 3, "fc1": 2, "fc2": 1
    }  # fmt: skip


# Inside fairseq


@in_single
@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_works_inside_fairseq_s_wrappers_for_half_precision(wrapper: Any, in_dtype: torch.dtype) -> None:
    """Updates are those of single precision; the state is kept in it, over a checkpoint too."""
    expected, params = parameters(), parameters(torch.float16)
    single = FairseqMuon(MuonConfig(**OPTIONS), expected)
    half = wrapper.build_optimizer(fairseq_configuration("muon", **OPTIONS), params)
    for step in range(6):
        for optimizer, trained in ((single, expected), (half, params)):
            optimizer.zero_grad()
            loss = sum(((param.float() - 0.5) ** 2).sum() for param in trained)
            optimizer.backward(loss)
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
        if step == 2:
            saved = copy.deepcopy(half.state_dict())
            half = wrapper.build_optimizer(fairseq_configuration("muon", **OPTIONS), params)
            half.load_state_dict(saved)
    states = half.optimizer.state.values()
    assert {tensor.dtype for state in states for tensor in state.values() if torch.is_tensor(tensor)} == {torch.float32}
    assert sum("momentum_buffer" in state for state in states) == len(HIDDEN)
    assert distance(params, parameters(torch.float16)) > 0.01
    assert distance(params, expected) < 8 * torch.finfo(torch.float16).eps


def test_continued_is_never_stopped_bit_for_bit() -> None:
    expected, params = parameters(), parameters()
    train(FairseqMuon(MuonConfig(**OPTIONS), expected), expected, 10)
    first = FairseqMuon(MuonConfig(**OPTIONS), params)
    train(first, params, 4)
    saved = copy.deepcopy(first.state_dict())
    for group in saved["param_groups"]:  # version 0.3 stored no other settings
        for name in group.keys() - {"params", "lr", "betas", "eps", "weight_decay", "kind", "momentum", "lr_ratio"}:
            del group[name]
    second = FairseqMuon(MuonConfig(**OPTIONS), params)
    second.load_state_dict(saved, {"weight_decay": 0.1})
    train(second, params, 6, 4)
    assert distance(params, expected) == 0.0


def test_schedules_reach_all_parameters() -> None:
    schedule = {"_name": "polynomial_decay", "warmup_updates": 2, "total_num_update": 6}
    optimizer = FairseqMuon(MuonConfig(**OPTIONS), parameters())
    scheduler = build_lr_scheduler(OmegaConf.create({"lr": [LR], **schedule}), optimizer)
    rates = [scheduler.step_update(update) for update in (1, 2, 6)]
    assert rates[1] == pytest.approx(LR) and rates[0] < LR > rates[2]
    assert [group["lr"] for group in optimizer.param_groups] == [rates[2]] * 3


def test_needs_matrices_with_their_shapes() -> None:
    flat = nn.Parameter(torch.cat([param.detach().view(-1) for param in parameters()]))
    with pytest.raises(ValueError, match="no hidden matrices to train. With --fp16, add --fp16-no-flatten-grads"):
        FairseqMuon(MuonConfig(**OPTIONS), [flat])
    # fairscale passes each rank its part of the groups.
    groups = MuonAdamW(parameters()).param_groups
    with pytest.raises(ValueError, match="cannot be divided by --zero-sharding"):
        MuonAdamW(groups)
