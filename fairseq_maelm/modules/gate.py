"""The gated activation of ModernBERT's feed-forward network, with both gradients written into one tensor."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _GatedGelu(torch.autograd.Function):
    """Spare the copy that autograd makes when it joins the gradients of the two halves."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor) -> Tensor:
        states, gate = joint.chunk(2, dim=-1)
        activated = F.gelu(states)
        ctx.save_for_backward(joint, activated)
        return activated * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        joint, activated = ctx.saved_tensors
        states, gate = joint.chunk(2, dim=-1)
        of_joint = torch.empty_like(joint)
        of_states, of_gate = of_joint.chunk(2, dim=-1)
        torch.mul(gradient, activated, out=of_gate)
        torch.ops.aten.gelu_backward.grad_input(gradient * gate, states, grad_input=of_states)
        return of_joint


def gated_gelu(joint: Tensor) -> Tensor:
    """Return GELU(states) * gate <float>[..., I]; ``joint`` <float>[..., 2 I] holds states and gate side by side."""
    if torch.compiler.is_compiling() or not joint.requires_grad:  # the compiler fuses all this by itself
        states, gate = joint.chunk(2, dim=-1)
        return F.gelu(states) * gate
    return _GatedGelu.apply(joint)
