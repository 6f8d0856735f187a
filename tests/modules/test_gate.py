"""The gated activation equals the plain formula bit for bit, in gradients too, and joins them without a copy."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.gate import gated_gelu


def plain(joint: Tensor) -> Tensor:
    states, gate = joint.chunk(2, dim=-1)
    return F.gelu(states) * gate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 16), (7, 6), (0, 8)])
def test_equals_the_plain_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    joint = torch.randn(shape).to(dtype)
    weight = torch.randn(*shape[:-1], shape[-1] // 2).to(dtype)
    results = []
    for function in (gated_gelu, plain):
        leaf = joint.clone().requires_grad_()
        output = function(leaf)
        output.backward(weight)
        results.append((output.detach(), leaf.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results))
    with torch.no_grad():
        assert torch.equal(gated_gelu(joint), results[1][0])


def test_gradient_is_right_in_double_precision() -> None:
    assert torch.autograd.gradcheck(gated_gelu, torch.randn(3, 8, dtype=torch.float64, requires_grad=True))


def test_gradients_are_not_copied_together() -> None:
    output = gated_gelu(torch.randn(4, 8, requires_grad=True))
    with torch.autograd.profiler.profile() as profile:
        output.sum().backward()
    assert not {"aten::cat", "aten::copy_"} & {event.name for event in profile.function_events}
