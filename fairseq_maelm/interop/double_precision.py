"""Computation in double precision with models whose weights are in single precision."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_LOOKUPS = (F.embedding, torch.embedding)
_OF_ANGLES = (torch.cos, torch.sin, Tensor.cos, Tensor.sin)


class DoublePrecision(TorchFunctionMode):
    """Within this context, every function of a weight computes in double precision, also in code that asks for less.

    Weights <float32> are converted where they are used: no model is copied or changed. Numbers that depend on no
    weight, such as rotary frequencies and distances before they are put into buckets, stay as they are, because they
    are part of the model's definition.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function with converted arguments."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # a property
            return func(*args, **kwargs)
        if func in _LOOKUPS:
            # Converting the rows that were looked up is faster than converting the table.
            return func(*args, **kwargs).double()
        if func in _OF_ANGLES or any(map(_is_precise, tree_leaves((args, kwargs)))):
            args, kwargs = tree_map(_converted, (args, kwargs))
            func = Tensor.double if func is Tensor.float else func
        return func(*args, **kwargs)


def _is_precise(value: Any) -> bool:
    return isinstance(value, Tensor) and (
        value.dtype == torch.float64 or (isinstance(value, Parameter) and value.dtype == torch.float32)
    )


def _converted(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
