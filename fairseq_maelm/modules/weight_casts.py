"""Half-precision copies of a model's weights, cast together instead of one by one as autocast does.

Autocast casts each weight in every forward pass and each gradient in every backward pass in a separate operation; these
are a third of all operations on a GPU. Here one operation casts all weights, once per update in training and once in
evaluation, and one operation casts the gradients of a layer's copies to single precision. All values are equal to those
of autocast, bit for bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.autocast import LayerNorm, autocast_dtype, computing_in
from fairseq_maelm.modules.layer_modes import Layer, Shown, layers_of, showing

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def cast_together(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Cast tensors to a type in one operation."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, tensors)
    return made


class _HandOut(torch.autograd.Function):
    """Returns existing copies of weights as if it cast the weights."""

    @staticmethod
    def forward(ctx: Any, copies: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        given = tuple(copy.detach() for copy in copies)
        ctx.mark_non_differentiable(*(copy for copy, weight in zip(given, weights) if not weight.requires_grad))
        return given

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        single = iter(cast_together([each for each in gradients if each is not None], torch.float32))
        return (None, *(None if each is None else next(single) for each in gradients))


class _Place(NamedTuple):
    """A module whose weights are cast."""

    parameters: dict[str, Any]
    names: tuple[str, ...]
    attributes: dict[str, Any]
    is_norm: bool


class _Group(NamedTuple):
    """Modules whose gradients are cast together: those of a layer, or all outside of layers."""

    layer: Layer | None
    places: list[_Place]

    def weights(self) -> list[Tensor]:
        """Return the parameters of these modules, in order."""
        return [place.parameters[name] for place in self.places for name in place.names]

    def shown(self, copies: Iterator[Tensor]) -> list[Shown]:
        """Return the attributes by which modules find their copies; in a linear layer they hide its parameters."""
        found: list[Shown] = []
        for place in self.places:
            if place.is_norm:
                pair = next(copies), next(copies) if len(place.names) > 1 else None
                found.append((place.attributes, "halves", pair))
            else:
                found += [(place.attributes, name, next(copies)) for name in place.names]
        if self.layer is not None:  # it may be recomputed after these attributes are removed
            found.append((self.layer.__dict__, "shown_in_pass", list(found)))
        return found


class WeightCasts:
    """The copies of a model's weights, made again when the weights may have changed.

    In training they are used for all passes of an update, whose number fairseq's trainer passes to models. In
    evaluation without gradients they are used until torch's version counter of a weight changes. Writing to
    ``parameter.data`` does not change this counter: call ``forget`` afterwards, unless the model is trained before the
    next evaluation.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the copies; the next pass finds the weights and casts them again."""
        self._groups: list[_Group] = []
        self._made_for: Any = None
        self._copies: list[Tensor] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy of the model has other weights

    def __setstate__(self, unused: dict[str, Any]) -> None:
        self.forget()

    @contextmanager
    def in_use(self, model: nn.Module, update: int | None) -> Iterator[None]:
        """Return a context in which linear layers and LayerNorms use the copies, if autocast is on.

        Args:
            model: the model, the same one in every call.
            update: number of the current update of a training run, or None if it is not known.
        """
        dtype = autocast_dtype(next(model.parameters()).device.type)
        if dtype is None:
            yield
            return
        self._groups = self._groups or _groups_of(model)
        weights = [group.weights() for group in self._groups]
        if not self._make(list(chain.from_iterable(weights)), dtype, _occasion(model, update)):
            yield
            return
        copies, shown = iter(self._copies), []
        for group, own in zip(self._groups, weights):
            given = [next(copies) for _ in own]
            shown += group.shown(iter(_HandOut.apply(given, *own) if torch.is_grad_enabled() else given))
        with showing(shown):
            yield

    def _make(self, weights: list[Tensor], dtype: torch.dtype, occasion: Any) -> bool:
        """Cast all weights if they may have changed; return False if some are not in single precision."""
        made_for = None
        if occasion is not None and not weights[0].is_inference():  # inference tensors have no version counter
            made_for = occasion, dtype, [(weight.data_ptr(), weight._version) for weight in weights]
        if made_for is None or made_for != self._made_for:
            if any(weight.dtype != torch.float32 for weight in weights):
                return False
            # New tensors, because a graph may still use the earlier copies.
            with torch.no_grad():
                self._copies = cast_together(weights, dtype)
            self._made_for = made_for
        return True


def _occasion(model: nn.Module, update: int | None) -> Any:
    """Return a key that is equal for passes between which the weights do not change, or None if they may."""
    if torch.is_grad_enabled():
        return ("update", update) if model.training and update is not None else None
    return None if model.training else "evaluation"


def _groups_of(model: nn.Module) -> list[_Group]:
    owners = {module: layer for layer in layers_of(model) for module in layer.modules()}
    groups: defaultdict[Layer | None, list[_Place]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, (nn.Linear, LayerNorm)):
            names = tuple(name for name, weight in module._parameters.items() if weight is not None)
            place = _Place(module._parameters, names, module.__dict__, isinstance(module, LayerNorm))
            groups[owners.get(module)].append(place)
    return [_Group(layer, places) for layer, places in groups.items()]


@contextmanager
def computing(model: Any) -> Iterator[None]:
    """Compute in the precision of a ``MaelmModel``."""
    with (
        computing_in(model.precision, model.encoder.embed_tokens.weight, model.training),
        model.weight_casts.in_use(model, model.update),
    ):
        yield


def in_its_precision(forward: _Forward) -> _Forward:
    """Make a method of a ``MaelmModel`` compute in the model's precision."""

    @wraps(forward)
    def compute(model: Any, *args: Any, **options: Any) -> Any:
        with computing(model):
            return forward(model, *args, **options)

    return cast(_Forward, compute)
