"""How a layer is executed in training: compiled, or recomputed for the backward pass. What it computes is the same."""

from typing import Any, Callable, Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_maelm.modules.attention.layers import MultiHeadAttention


class Layer(nn.Module):
    """A layer of a stack.

    Neither switch below touches parameters or their names, and neither acts outside training, so that a checkpoint
    loads anywhere, whatever it was trained with.

    Attributes:
        compiles: let torch.compile make one kernel of neighboring operations, where ``worth_compiling``. Layers of one
            kind share their compiled code. It is made for the first batch's shape, and where shapes vary once more for
            all of them.
        recomputes: keep the layer's input only and compute all else again in the backward pass, with the same dropout
            (Chen et al., 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    compiles = False
    recomputes = False

    def __call__(self, states: Tensor, *others: Any, **options: Any) -> Any:
        """Run ``forward``, whose arguments these are."""
        call: Callable[..., Any] = self._call_impl
        if self.training and self.compiles and worth_compiling(states):
            if self._compiled_call_impl is None:
                self._leave_attention_out()
                self.compile()
            call = self._compiled_call_impl or call
        if self.training and self.recomputes and torch.is_grad_enabled():
            return checkpoint(call, states, *others, use_reentrant=False, **options)
        return call(states, *others, **options)

    def _leave_attention_out(self) -> None:
        for module in self.children():
            if isinstance(module, MultiHeadAttention):
                module.leave_graphs()


def worth_compiling(states: Tensor) -> bool:
    """Whether compiled layers are faster where these states are: on GPUs. On a CPU it costs and saves nothing."""
    return states.is_cuda


def execute(model: nn.Module, compiles: bool, recomputes: bool) -> None:
    """Say how all layers of a model are executed in training."""
    for layer in layers_of(model):
        layer.compiles, layer.recomputes = compiles, recomputes


def layers_of(model: nn.Module) -> Iterable[Layer]:
    """The layers of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Layer))
