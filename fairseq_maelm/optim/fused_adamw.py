"""``--optimizer fused_adamw``: fairseq's ``adam``, several times faster where apex is not installed."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import Tensor

from fairseq_maelm.optim.adamw import AdamW, multiply, norm_of_all

_STATE = {"step", "exp_avg", "exp_avg_sq"}


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """Options, named and preset as those of fairseq's ``adam``."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "decay of the first and the second moment"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon, added to the root of the second moment"})
    weight_decay: float = field(
        default=0.0, metadata={"help": "decoupled weight decay, of all parameters as fairseq does it"}
    )
    lr: List[float] = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqAdam):
    """AdamW by torch's fused kernels, with the results and the checkpoints of fairseq's ``adam``.

    Works under fp32 and inside fairseq's wrappers for ``--fp16`` and ``--memory-efficient-fp16``.

    Args:
        cfg: a ``FusedAdamWConfig``.
        params: the parameters.

    Raises:
        ValueError: if an option is out of its range.
    """

    optimizer_class = AdamW

    def __init__(self, cfg: Any, params: Iterable[Tensor]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # what lies between would build fairseq's own optimizer
        self._optimizer = self.optimizer_class(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The numbers of this run, by the names under which a checkpoint holds them."""
        betas = self.cfg.adam_betas
        try:
            betas = tuple(float(beta) for beta in (ast.literal_eval(betas) if isinstance(betas, str) else betas))
        except (ValueError, SyntaxError, TypeError):
            raise ValueError(f"--adam-betas must be two numbers, such as '(0.9, 0.98)', and is {betas!r}") from None
        return {
            "lr": self.cfg.lr[0],
            "betas": betas,
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply all gradients by a number."""
        multiply([param.grad for param in self.params if param.grad is not None], c)

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Scale gradients down to a norm of ``max_norm`` where theirs is larger; 0 only measures.

        Args:
            max_norm: 0 or more.
            aggregate_norm_fn: turns the norm of this process into that of all of them.

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
            # A tensor all along, so that nothing waits for the device; fairseq adds the same small number.
            multiply(grads, (float(max_norm) / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Continue from a checkpoint of this optimizer or of fairseq's ``adam``, with apex or without.

        Raises:
            ValueError: if the checkpoint's state is another optimizer's.
        """
        super().load_state_dict(adam_state(state_dict), optimizer_overrides)


# fairseq continues only with an optimizer whose class is named as the one in the checkpoint. This one is a FairseqAdam
# in everything that a checkpoint holds, so that runs may change between the two.
FusedAdamW.__name__ = FairseqAdam.__name__


def adam_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Bring the state of any of fairseq's Adams into the layout of ``fairseq.optim.adam.Adam``.

    Args:
        state_dict: as ``torch.optim.Optimizer.state_dict`` gives it; not changed.

    Returns:
        the same with ``step`` <int>, ``exp_avg`` and ``exp_avg_sq`` for every parameter.

    Raises:
        ValueError: if it holds something else.
    """
    # apex counts updates once for a whole group.
    counts = {
        index: group["step"] for group in state_dict["param_groups"] if "step" in group for index in group["params"]
    }
    state = {}
    for index, entry in state_dict["state"].items():
        entry = {"step": counts.get(index), **entry}
        if entry.keys() != _STATE or entry["step"] is None:
            raise ValueError(
                f"the checkpoint's optimizer state holds {', '.join(sorted(entry))} and is not that of fairseq's adam: "
                "continue with the optimizer that wrote it, or start it anew by --reset-optimizer"
            )
        state[index] = {**entry, "step": int(entry["step"])}
    groups = [{key: value for key, value in group.items() if key != "step"} for group in state_dict["param_groups"]]
    return {**state_dict, "state": state, "param_groups": groups}
