"""``--optimizer fused_adamw``: fairseq's ``adam``, several times faster where apex is not installed."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import Tensor

from fairseq_maelm.optim.adamw import AdamW, multiply, norm_of_all
from fairseq_maelm.options import check_options, option

_STATE = {"step", "exp_avg", "exp_avg_sq"}


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """Options, with the names and defaults of fairseq's ``adam``."""

    adam_betas: Any = option((0.9, 0.999), help="decay of the first and the second moment")
    adam_eps: float = option(1e-8, help="epsilon, added to the root of the second moment", minimum=0)
    weight_decay: float = option(0.0, help="decoupled weight decay of all parameters, as in fairseq", minimum=0)
    lr: List[float] = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqAdam):
    """AdamW by torch's fused kernels, with the results and the checkpoint format of fairseq's ``adam``.

    It works in fp32 and inside fairseq's wrappers for ``--fp16`` and ``--memory-efficient-fp16``.

    Args:
        cfg: a ``FusedAdamWConfig``.
        params: the parameters.

    Raises:
        ValueError: an option is out of its range.
    """

    optimizer_class: type = AdamW
    options: type = FusedAdamWConfig

    def __init__(self, cfg: Any, params: Iterable[Tensor]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # FairseqAdam's would build fairseq's own optimizer
        check_options(cfg, self.options)
        self._optimizer = self.optimizer_class(params, **self.optimizer_config)

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

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply all gradients by a number."""
        multiply([param.grad for param in self.params if param.grad is not None], c)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Scale the gradients down to a norm of at most ``max_norm``.

        Args:
            max_norm: largest norm; 0 only measures the norm.
            aggregate_norm_fn: converts the norm in this process to the norm over all processes.

        Returns:
            <float32>[] the norm before clipping.
        """
        grads = [param.grad for param in self.params if param.grad is not None]
        if not grads:
            return torch.zeros((), device=next(iter(self.params)).device)
        norm = norm_of_all(grads)
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0.0:
            # The factor stays a tensor, to avoid synchronizing with the GPU. fairseq adds the same small number.
            multiply(grads, (float(max_norm) / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load the state of this optimizer or of fairseq's ``adam``, with or without apex.

        Raises:
            ValueError: the state is another optimizer's.
        """
        super().load_state_dict(adam_state(state_dict), optimizer_overrides)


# fairseq resumes only if the optimizer's class name equals the name in the checkpoint. The two classes have the same
# state, so a run may switch between FusedAdamW and FairseqAdam.
FusedAdamW.__name__ = FairseqAdam.__name__


def adam_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Convert optimizer state from any fairseq Adam to the layout in ``fairseq.optim.adam.Adam``.

    Args:
        state_dict: result of ``torch.optim.Optimizer.state_dict``; not changed.

    Returns:
        a copy with ``step`` <int>, ``exp_avg`` and ``exp_avg_sq`` for every parameter.

    Raises:
        ValueError: ``state_dict`` is not from an Adam optimizer.
    """
    # apex stores one update count per parameter group.
    counts = {
        index: group["step"] for group in state_dict["param_groups"] if "step" in group for index in group["params"]
    }
    state = {}
    for index, entry in state_dict["state"].items():
        entry = {"step": counts.get(index), **entry}
        if entry.keys() != _STATE or entry["step"] is None:
            raise ValueError(
                f"the checkpoint's optimizer state ({', '.join(sorted(entry))}) is not that of fairseq's adam: "
                "continue with the optimizer that wrote it, or give --reset-optimizer to start with a new state"
            )
        state[index] = {**entry, "step": int(entry["step"])}
    groups = [{key: value for key, value in group.items() if key != "step"} for group in state_dict["param_groups"]]
    return {**state_dict, "state": state, "param_groups": groups}
