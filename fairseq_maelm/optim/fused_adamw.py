"""``--optimizer fused_adamw``: AdamW (Loshchilov and Hutter, 2019) by torch's fused kernels, for fairseq's trainer."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam
from omegaconf import II
from torch import Tensor

from fairseq_maelm.options import check_options, option

_ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """Options, with the names and defaults of fairseq's ``adam``."""

    adam_betas: Any = option((0.9, 0.999), help="decay of the first and the second moment")
    adam_eps: float = option(1e-8, help="epsilon, added to the root of the bias-corrected second moment", minimum=0)
    weight_decay: float = option(0.0, help="decoupled weight decay of all parameters, as in fairseq", minimum=0)
    lr: List[float] = II("optimization.lr")


def is_half(tensor: Tensor) -> bool:
    """Return True for float16 and bfloat16."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def adamw(params: Iterable[Any], **settings: Any) -> torch.optim.Optimizer:
    """Return torch's fused AdamW; for parameters in half precision fairseq's, whose state is in single precision."""
    groups = list(params)
    tensors = [param for group in groups for param in (group["params"] if isinstance(group, dict) else [group])]
    if any(map(is_half, tensors)):
        return Adam(groups, **settings)
    return torch.optim.AdamW(groups, **settings, fused=True)


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqAdam):
    """``torch.optim.AdamW`` by its fused kernels, with the checkpoint format of fairseq's ``adam``.

    It differs from fairseq's in epsilon, which torch adds after the bias correction: fairseq's is effectively larger in
    the first hundreds of updates. It works in fp32 and inside fairseq's wrappers for ``--fp16`` and
    ``--memory-efficient-fp16``. A ValueError says that an option is out of its range.
    """

    make_optimizer: Callable[..., torch.optim.Optimizer] = staticmethod(adamw)
    options: type = FusedAdamWConfig
    entries: tuple[set[str], ...] = (_ADAM_STATE,)  # what the state of a parameter may consist of
    supports_memory_efficient_fp16 = True
    supports_flat_params = True

    def __init__(self, cfg: Any, params: Iterable[Tensor]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's would build fairseq's own optimizer
        check_options(cfg, self.options)
        self._optimizer = self.make_optimizer(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The optimizer's settings, with the names that they have in a checkpoint."""
        betas = self.cfg.adam_betas
        try:
            betas = tuple(float(beta) for beta in (ast.literal_eval(betas) if isinstance(betas, str) else betas))
        except (ValueError, SyntaxError, TypeError):
            betas = ()
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            given = self.cfg.adam_betas
            raise ValueError(f"--adam-betas must be two numbers in [0, 1), such as '(0.9, 0.98)', not {given!r}")
        weight_decay = self.cfg.weight_decay
        return {"lr": self.cfg.lr[0], "betas": betas, "eps": self.cfg.adam_eps, "weight_decay": weight_decay}

    def _grads(self) -> list[Tensor]:
        return [param.grad for param in self.params if param.grad is not None]

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply all gradients by a number; a scalar on the GPU is not read by the host."""
        if grads := self._grads():
            torch._foreach_mul_(grads, c.to(grads[0].device) if isinstance(c, Tensor) else c)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Scale gradients down to a norm of at most ``max_norm`` (0 for no limit); return the norm before, <float32>[].

        ``aggregate_norm_fn`` converts the norm in this process to the norm over all processes.
        """
        grads = self._grads()
        if not grads:
            return torch.zeros((), device=next(iter(self.params)).device)
        # In half precision the squares of a norm of 256 would overflow.
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0, dtype=torch.float32)))
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0.0:
            # The factor stays a tensor, to avoid synchronizing with the GPU. fairseq adds the same small number.
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the form of ``fairseq.optim.adam.Adam``, which counts updates by integers."""
        return _with_counts(super().state_dict(), int)

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load the state of this optimizer or of fairseq's ``adam``, with or without apex; others are a ValueError."""
        state_dict = known_state(state_dict, self.entries)
        if "fused" in self.optimizer.defaults:  # torch's kernels count in tensors
            state_dict = _with_counts(state_dict, lambda count: torch.tensor(float(count)))
        # fairseq's adam and version 0.3 store fewer settings.
        groups = [{**self.optimizer.defaults, **group} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups}, optimizer_overrides)


# fairseq resumes only if the optimizer's class name equals the name in the checkpoint. The two classes have the same
# state, so a run may switch between FusedAdamW and FairseqAdam.
FusedAdamW.__name__ = FairseqAdam.__name__


def known_state(state_dict: dict[str, Any], entries: tuple[set[str], ...] = (_ADAM_STATE,)) -> dict[str, Any]:
    """Convert optimizer state from any fairseq Adam to the layout in ``fairseq.optim.adam.Adam``.

    Return a copy in which parameters count their own updates, as integers. A parameter's state that consists of none of
    the sets of ``entries`` is a ValueError.
    """
    # apex stores one update count per parameter group.
    counts = {
        index: {"step": group["step"]}
        for group in state_dict["param_groups"]
        if "step" in group
        for index in group["params"]
    }
    state = {index: {**counts.get(index, {}), **entry} for index, entry in state_dict["state"].items()}
    for entry in state.values():
        if entry.keys() not in entries:
            raise ValueError(
                f"the checkpoint's optimizer state ({', '.join(sorted(entry))}) is none that this optimizer "
                "reads: continue with the optimizer that wrote it, or give --reset-optimizer to start with a new state"
            )
    groups = [{key: value for key, value in group.items() if key != "step"} for group in state_dict["param_groups"]]
    return _with_counts({**state_dict, "state": state, "param_groups": groups}, int)


def _with_counts(state_dict: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Convert the update counts of a state; hidden matrices of Muon have none."""
    state = {
        index: {**entry, "step": convert(entry["step"])} if "step" in entry else entry
        for index, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}
