"""Execution of layers in training: compiled, or recomputed for the backward pass. The results are the same."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Elements of states from which on recomputing takes little of a layer's time.
_LARGE = 2**20


class Layer(nn.Module):
    """A layer of a stack, with two attributes that affect only training, not parameters, their names or checkpoints.

    ``compiles``: use torch.compile where ``worth_compiling``. Layers of the same kind share one graph for all shapes. A
    batch with a single sequence needs another graph, and is compiled only before the first larger batch.

    ``recomputes``: store only the layer's input, and recompute everything else in the backward pass with the same
    dropout (Chen et al., 2016, Training Deep Nets with Sublinear Memory Cost).
    """

    compiles = False
    recomputes = False
    _compiled_for_many = False

    def __call__(self, states: Tensor, context: Any, *others: Any, **options: Any) -> Any:
        """Run ``forward`` with these arguments; ``context`` is an ``AttentionContext`` or None."""
        call: Callable[..., Any] = self._call_impl
        single = (len(states) if context is None else context.sequences(states)) == 1
        if self.training and self.compiles and worth_compiling(states) and not (single and self._compiled_for_many):
            self._compiled_for_many = not single
            if self._compiled_call_impl is None:
                self.compile(dynamic=True)
            call = self._compiled_call_impl or call
        if self.training and self.recomputes and torch.is_grad_enabled():
            return checkpoint(call, states, context, *others, use_reentrant=False, **options)
        return call(states, context, *others, **options)


def recomputed(function: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """Apply elementwise functions and a matrix product; for large states on a CPU, store only the input and the result.

    The backward pass computes the product's other factor from the input again, but not the product. With ModernBERT's
    layers this saves a quarter of the memory of activations for 1 to 2 percent of the time. torch.compile does it by
    itself.
    """
    large = states.device.type == "cpu" and states.numel() >= _LARGE and states.requires_grad
    if not large or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(states)
    return checkpoint(function, states, use_reentrant=False, preserve_rng_state=False)


def worth_compiling(states: Tensor) -> bool:
    """Return True on a GPU. On a CPU, compiled layers are slower with dropout, and at most a tenth faster without."""
    return states.is_cuda


def in_graphs(layers: nn.ModuleList, states: Tensor) -> bool:
    """Return True if these layers are compiled in this pass; each optional input must then be None always or never."""
    return any(layer.training and layer.compiles for layer in layers) and worth_compiling(states)


def prepares_shapes(model: Any) -> bool:
    """Return True if a model prepares itself for each new shape, so that few shapes are worth a little padding.

    Compiled layers do. On a CPU in half precision, oneDNN makes a program for each shape of a product, which takes
    milliseconds and 0.7 MB each.
    """
    weight = model.encoder.embed_tokens.weight
    half = model.precision == "bf16" or weight.dtype.itemsize == 2
    return model.config.compile or (half and weight.device.type == "cpu")


def execute(model: nn.Module, compiles: bool, recomputes: bool) -> None:
    """Set how all layers of a model are executed in training."""
    if compiles:
        from torch.fx.experimental import _config  # torch's compiler takes seconds

        # By default the graph would assume that two equal sizes, such as sequences and heads, are always equal.
        _config.use_duck_shape = False
    for layer in layers_of(model):
        layer.compiles, layer.recomputes = compiles, recomputes


def layers_of(model: nn.Module) -> Iterable[Layer]:
    """Return the layers of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Layer))
