"""Updates under --amp, and the running average of the weights, --store-ema.

With --amp, fairseq undoes the loss scale to clip gradients, but makes the update through another object, for which
torch undoes it again. Adam tolerates this only as long as gradients are larger than its epsilon: with epsilon 1e-6 and
a scale that has grown to 65,536, weights hardly change.

To average, fairseq multiplies every entry of the state dict by the decay. For integers, such as the settings in our
models' state dicts, the first update raises an exception; weights with two names, such as RoBERTa's embeddings, decay
twice. Fine-tuning would continue the average from pretraining, and a resumed run would restart the update count for
``--ema-update-freq`` at 0.
Tests: tests/fairseq_fixes/test_updates.py, tests/end_to_end/test_ema.py.
"""

import functools
import logging
from typing import Any

import torch
from fairseq.models.ema.ema import EMA
from fairseq.optim import AMPOptimizer
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes import replaces

logger = logging.getLogger(__name__)

_load_checkpoint = Trainer.load_checkpoint


@replaces(
    AMPOptimizer,
    "step",
    why="gradients are divided by the loss scale twice: once the scale has grown, the weights hardly change",
    acts_on="runs with --amp",
)
def _step(self: AMPOptimizer) -> None:
    """Make an update, unless a gradient is infinite, and adapt the scale."""
    # ``clip_grad_norm`` has undone the scale for this same object.
    self.scaler.step(self.optimizer)
    self.scaler.update()


@replaces(
    EMA,
    "_step_internal",
    why="the first update fails for a model with integers in its state dict; weights with two names are averaged twice",
    acts_on="runs with --store-ema",
)
def _average(self: EMA, new_model: Any, updates: int | None = None) -> None:
    """Update the average with a model's weights; integers are copied."""
    own = self.model.state_dict()
    average = self.fp32_params if self.config.ema_fp32 else own
    done: set[int] = set()
    with torch.no_grad():
        for name, weight in new_model.state_dict().items():
            mean = average[name]
            if not mean.is_floating_point() or name in self.skip_keys:
                mean.copy_(weight)
            elif mean.data_ptr() not in done:
                done.add(mean.data_ptr())
                mean.mul_(self.decay).add_(weight.to(mean.dtype), alpha=1 - self.decay)
            # With --ema-fp32 the model has the average in its own precision, which may be the same tensor.
            if own[name].data_ptr() != mean.data_ptr():
                own[name].copy_(mean)


@functools.wraps(_load_checkpoint)
def load_with_average(self: Trainer, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint, with or without a running average, into a trainer; ``resuming`` makes fairseq call this."""
    if not self.cfg.ema.store_ema:
        return _load_checkpoint(self, filename, reset_optimizer, *args, **kwargs)
    # Skip fairseq's handling of the average; it is replaced below.
    self.cfg.ema.store_ema = False
    try:
        extra_state = _load_checkpoint(self, filename, reset_optimizer, *args, **kwargs)
    finally:
        self.cfg.ema.store_ema = True
    # fairseq builds the average from the model on first use: in ``_restore`` below, otherwise in the first update.
    self._ema = None
    if extra_state is None:
        return None
    if reset_optimizer or "ema" not in extra_state:
        logger.info("the running average of the weights starts with this run")
    else:
        _restore(self, extra_state)
    return extra_state


def _restore(trainer: Trainer, extra_state: dict[str, Any]) -> None:
    ema = trainer.ema
    ema.restore(extra_state["ema"])
    if ema.config.ema_fp32:
        ema.build_fp32_params(extra_state.get("ema_fp32_params"))
    ema.update_freq_counter = trainer.get_num_updates() % ema.config.ema_update_freq
