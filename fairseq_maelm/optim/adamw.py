"""fairseq's AdamW, computed by torch's fused kernels."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

logger = logging.getLogger(__name__)


@cache
def has_fused_kernel(device_type: str) -> bool:
    """Return whether torch has a fused AdamW for this device type; if not, log the reason once."""
    try:
        torch.optim.AdamW([torch.zeros(1, device=device_type)], fused=True)
    except RuntimeError as error:
        logger.warning("no fused AdamW on %s, using torch's foreach implementation: %s", device_type, error)
        return False
    return True


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), equal to ``fairseq.optim.adam.Adam``.

    The state of a parameter has the form of fairseq's class: ``step`` <int>, ``exp_avg`` and ``exp_avg_sq`` <float32>
    of the parameter's shape. Updates of half-precision parameters are computed in single precision.

    It differs from ``torch.optim.AdamW`` in two ways. As in fairseq, epsilon is added to the root of the second moment
    before the bias correction, so epsilon is effectively larger in the first few thousand updates. And the update count
    is a Python integer, which avoids synchronizing with the GPU.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: decay of the first and the second moment, in [0, 1).
        eps: epsilon, at least 0.
        weight_decay: decoupled weight decay, at least 0; an update multiplies it by the learning rate.
    """

    supports_memory_efficient_fp16 = True
    supports_flat_params = True
    # fairseq's own conversion of the state to single precision would undo ``load_state_dict`` below.
    disable_mem_eff_fp16_loading_hack = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: recomputes and returns the loss; fairseq passes none.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update_group(group)
        return loss

    def _update_group(self, group: dict[str, Any]) -> None:
        # A parameter that has no gradient in some updates, such as an unused head's, has its own update count.
        together: defaultdict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
        for param in group["params"]:
            if param.grad is not None:
                state = self._state_of(param)
                state["step"] += 1
                together[state["step"], param.device].append(param)
        for (count, _), params in together.items():
            self._update(params, count, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; unlike in torch, the state of a half-precision parameter stays in single precision."""
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(saved, own):
            if is_half(param) and index in state_dict["state"]:
                self.state[param] = dict(state_dict["state"][index])

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        """Return the parameter's state, on its device; create the state if there is none."""
        state: dict[str, Any] = self.state[param]
        dtype = torch.float32 if is_half(param) else param.dtype
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = state[name].to(device=param.device, dtype=dtype)
        return state

    def _update(self, params: list[Tensor], count: int, group: dict[str, Any]) -> None:
        """Apply update number ``count`` (from 1) to parameters on one device."""
        full = [param for param in params if not is_half(param)]
        self._update_full(full, full, count, group)
        for param in params:
            if is_half(param):
                # One parameter at a time: single-precision copies of all would cost what half precision saves.
                copy = param.float()
                self._update_full([copy], [param], count, group)
                param.copy_(copy)

    def _update_full(self, values: list[Tensor], params: list[Tensor], count: int, group: dict[str, Any]) -> None:
        """Update ``values``, the parameters or their copies in single precision, in place."""
        if not params:
            return
        grads = [param.grad.to(value.dtype) for param, value in zip(params, values) if param.grad is not None]
        beta1, beta2 = group["betas"]
        device = params[0].device
        fused = has_fused_kernel(device.type)
        # torch increments the counts. Without the fused kernel it reads them on the host.
        counts = torch.full((len(params),), count - 1.0, device=device if fused else "cpu").unbind()
        adamw(
            values,
            grads,
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            list(counts),
            fused=fused,
            foreach=not fused,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"] / math.sqrt(1.0 - beta2**count),
            maximize=False,
        )


def is_half(tensor: Tensor) -> bool:
    """Return True for float16 and bfloat16."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def multiply(tensors: list[Tensor], factor: float | Tensor) -> None:
    """Multiply tensors in place by a number or a scalar tensor; a scalar on the GPU is not read by the host."""
    for device, chosen in by_device(tensors).items():
        torch._foreach_mul_(chosen, factor.to(device) if isinstance(factor, Tensor) else factor)


def norm_of_all(tensors: list[Tensor]) -> Tensor:
    """Return the Euclidean norm <float32>[] over one or more tensors, on the first one's device.

    Squares are summed in single precision: in half precision a norm of 256 would overflow.
    """
    norms: list[Tensor] = []
    for chosen in by_device(tensors).values():
        norms += torch._foreach_norm(chosen, 2.0, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def by_device(tensors: list[Tensor]) -> dict[torch.device, list[Tensor]]:
    """Group tensors by device, for torch's operations on lists."""
    chosen: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        chosen[tensor.device].append(tensor)
    return chosen
