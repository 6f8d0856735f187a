"""``--optimizer muon``: Muon (Jordan et al., 2024) for hidden matrices, AdamW for all other parameters.

Muon orthogonalizes the momentum of a matrix's gradient, so that all singular values become about 1. The update is
lr * 0.2 * sqrt(max(rows, columns)) times the result (Liu et al., 2025, Muon is Scalable for LLM Training): elements
then change as much as with AdamW, and --lr has the same meaning for all parameters.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from fairseq.optim import register_optimizer
from torch import Tensor

from fairseq_maelm.modules.autocast import multiplies_bfloat16
from fairseq_maelm.modules.initialization import HIDDEN, UNDECAYED, matrices_in
from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig, adamw, is_half
from fairseq_maelm.options import option

# A step of the Newton-Schulz iteration is a x + b x^3 + c x^5, with a, b, c of https://kellerjordan.github.io/posts/muon.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
_SMALLEST_NORM = 1e-7
# Most elements that are orthogonalized at once: enough to keep a GPU busy, with little memory.
_ELEMENTS_TOGETHER = 2**24


@dataclass
class MuonConfig(FusedAdamWConfig):
    """Options of AdamW and of Muon."""

    weight_decay: float = option(0.0, help="decoupled weight decay of matrices; norms and biases have none", minimum=0)
    muon_momentum: float = option(0.95, help="momentum of the hidden matrices' gradients", minimum=0, below=1)
    muon_lr_ratio: float = option(
        1.0, help="learning rate of the hidden matrices, as a multiple of --lr", above=0, below=math.inf
    )


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices that ``mark_parameters`` has marked, AdamW for all other parameters.

    ``momentum`` in [0, 1) is Muon's, and ``lr_ratio`` its learning rate as a multiple of ``lr``. Other ``settings`` are
    those of ``adamw``; ``weight_decay`` is that of all matrices. No hidden matrix is a ValueError.

    The state of a hidden matrix is ``momentum_buffer`` <float32>, of the same shape. Updates of half-precision
    parameters are computed in single precision. In distributed training every process updates all matrices.
    """

    def __init__(
        self, params: Iterable[Tensor], *, momentum: float = 0.95, lr_ratio: float = 1.0, **settings: Any
    ) -> None:
        groups = _groups(params)
        self._adamw = adamw([group for group in groups if group["kind"] != HIDDEN], **settings)
        super().__init__(groups, {**self._adamw.defaults, "momentum": momentum, "lr_ratio": lr_ratio})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; fairseq passes no ``closure``."""
        hidden = [group for group in self.param_groups if group["kind"] == HIDDEN]
        others = [group for group in self.param_groups if group["kind"] != HIDDEN]
        # A state that was loaded is new. Decay is decided here, because fairseq gives all groups the same settings.
        self._adamw.state = self.state
        self._adamw.param_groups = [
            {**group, "weight_decay": 0.0} if group["kind"] == UNDECAYED else group for group in others
        ]
        loss: float | None = self._adamw.step(closure)
        for group in hidden:
            self._update_hidden(group)
        return loss

    def _update_hidden(self, group: dict[str, Any]) -> None:
        """Update the hidden matrices in batches of equal shape."""
        together: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for param in group["params"]:
            if param.grad is not None:
                together[(param.device, *_shape(param))].append(param)
        for params in together.values():
            count = max(1, _ELEMENTS_TOGETHER // max(param.numel() for param in params))
            for first in range(0, len(params), count):
                self._update_equal(params[first : first + count], group)

    def _update_equal(self, params: list[Tensor], group: dict[str, Any]) -> None:
        dtype, shape = _dtype_on(params[0].device.type), _shape(params[0])
        directions = [self._direction(param, group["momentum"]).to(dtype).reshape(-1, *shape) for param in params]
        steps = orthogonalize(torch.cat(directions)).split([len(matrices) for matrices in directions])
        lr = group["lr"] * group["lr_ratio"]
        for param, step in zip(params, steps):
            value = param.float() if is_half(param) else param
            value.mul_(1.0 - lr * group["weight_decay"])
            value.add_(step.view_as(param), alpha=-lr * 0.2 * math.sqrt(max(shape)))
            if value is not param:
                param.copy_(value)

    def _direction(self, param: Tensor, momentum: float) -> Tensor:
        """Add the gradient to the momentum buffer; return Nesterov's momentum as a new tensor."""
        state, dtype = self.state[param], torch.float32 if is_half(param) else param.dtype
        if not state:
            state["momentum_buffer"] = torch.zeros_like(param, dtype=dtype)
        buffer = state["momentum_buffer"] = state["momentum_buffer"].to(device=param.device, dtype=dtype)
        assert param.grad is not None
        grad = param.grad.to(dtype)
        buffer.lerp_(grad, 1.0 - momentum)
        return grad.lerp(buffer, momentum)


def _groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Group parameters by the way they are updated."""
    kinds: dict[str, list[Tensor]] = {"decayed": [], UNDECAYED: [], HIDDEN: []}
    for param in params:
        if isinstance(param, dict):
            raise ValueError("--optimizer muon cannot be divided by --zero-sharding: choose another optimizer")
        kinds[getattr(param, "param_group", "decayed" if param.ndim > 1 else UNDECAYED)].append(param)
    if not kinds[HIDDEN]:
        raise ValueError(
            "--optimizer muon finds no hidden matrices to train. With --fp16, add --fp16-no-flatten-grads. If the "
            "model is sharded or not a model of this package, choose another optimizer"
        )
    return [{"params": chosen, "kind": kind} for kind, chosen in kinds.items()]


def _shape(param: Tensor) -> tuple[int, int]:
    """Return the shape (rows, columns) of the hidden matrices in a parameter."""
    return param.shape[0] // matrices_in(param), param.shape[1]


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices <float>[n, rows, columns] close to 1; most end up in [0.7, 1.2]."""
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True, dtype=torch.float32)
    values = matrices / norms.clamp(min=_SMALLEST_NORM).to(matrices.dtype)
    is_tall = values.shape[1] > values.shape[2]
    for _ in range(_STEPS):
        squares = values.mT @ values if is_tall else values @ values.mT
        factors = torch.baddbmm(squares, squares, squares, beta=_B, alpha=_C)
        left, right = (values, factors) if is_tall else (factors, values)
        values = torch.baddbmm(values, left, right, beta=_A)
    return values


@cache
def _dtype_on(device_type: str) -> torch.dtype:
    """Return the dtype of ``orthogonalize``: bfloat16 where fast, since it is exact enough (Jordan et al., 2024)."""
    return torch.bfloat16 if multiplies_bfloat16(device_type) else torch.float32


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FusedAdamW):
    """fairseq's wrapper of ``MuonAdamW``, for fp32, --fp16 --fp16-no-flatten-grads and --memory-efficient-fp16."""

    make_optimizer = MuonAdamW
    options = MuonConfig
    entries = (*FusedAdamW.entries, {"momentum_buffer"})
    supports_flat_params = False

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The optimizer's settings, with the names that they have in a checkpoint."""
        own = {"momentum": self.cfg.muon_momentum, "lr_ratio": self.cfg.muon_lr_ratio}
        return {**super().optimizer_config, **own}
