"""How a layer is executed in training: compiled, or recomputed for the backward pass. What it computes is the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Attributes of a module, the name of one, and its value.
Shown = tuple[dict[str, Any], str, Any]


class Layer(nn.Module):
    """A layer of a stack.

    Neither switch below touches parameters or their names, and neither acts outside training, so that a checkpoint
    loads anywhere, whatever it was trained with.

    Attributes:
        compiles: let torch.compile make one kernel of neighboring operations, where ``worth_compiling``. Layers of one
            kind share their compiled code, which is made for all shapes at once; but for torch a single sequence is of
            another kind, which is compiled only where no larger batch came before it.
        recomputes: keep the layer's input only and compute all else again in the backward pass, with the same dropout
            (Chen et al., 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    compiles = False
    recomputes = False
    _compiled_for_many = False
    # What ``showing`` shows in this layer during a pass, and again when that is recomputed.
    shown_in_pass: Sequence[Shown] = ()

    def __call__(self, states: Tensor, *others: Any, **options: Any) -> Any:
        """Run ``forward``, whose arguments these are."""
        call: Callable[..., Any] = self._call_impl
        single = len(states) == 1
        if self.training and self.compiles and worth_compiling(states) and not (single and self._compiled_for_many):
            self._compiled_for_many = not single
            if self._compiled_call_impl is None:
                self.compile(dynamic=True)
            call = self._compiled_call_impl or call
        if self.training and self.recomputes and torch.is_grad_enabled():
            return checkpoint(
                _with_its_weights(call, self.shown_in_pass), states, *others, use_reentrant=False, **options
            )
        return call(states, *others, **options)


@contextmanager
def showing(shown: Sequence[Shown]) -> Iterator[None]:
    """Give modules attributes for a while, which may hide parameters of the same names."""
    try:
        for attributes, name, value in shown:
            attributes[name] = value
        yield
    finally:
        for attributes, name, _ in shown:
            attributes.pop(name, None)


def _with_its_weights(call: Callable[..., Any], shown: Sequence[Shown]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        with showing(shown):
            return call(*args, **options)

    return run


def worth_compiling(states: Tensor) -> bool:
    """Whether compiled layers are faster where these states are: on GPUs. On a CPU it costs and saves nothing."""
    return states.is_cuda


def in_graphs(layers: nn.ModuleList, states: Tensor) -> bool:
    """Whether these layers are compiled in this pass: what they get should then always be of the same kind."""
    return any(layer.training and layer.compiles for layer in layers) and worth_compiling(states)


def execute(model: nn.Module, compiles: bool, recomputes: bool) -> None:
    """Say how all layers of a model are executed in training."""
    if compiles:
        from torch.fx.experimental import _config  # torch's compiler takes seconds

        # By default a batch of as many sequences as there are heads ties the one to the other in the graph.
        _config.use_duck_shape = False
    for layer in layers_of(model):
        layer.compiles, layer.recomputes = compiles, recomputes


def layers_of(model: nn.Module) -> Iterable[Layer]:
    """The layers of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Layer))
