"""Choose, after training, between the weights before the first update, those after the last, and mixtures of both.

With few examples, training from the frozen solution may learn much or only memorize, and too few examples are held out
to choose among epochs by accuracy. Their loss tells one from the other, and weights on the line between the two ends
are often better than either (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models").
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

logger = logging.getLogger(__name__)

# How far the mixtures go from the weights before the first update to those after the last.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@torch.no_grad()
def take_best_mixture(trainer: Any, start: Mapping[str, Tensor]) -> None:
    """Give the model the mixture of weights with the least loss on the first validation set; call it on all ranks.

    Args:
        trainer: the trainer after its last update.
        start: the weights before the first update, by name.
    """
    parameters = dict(trainer.get_model().named_parameters())
    end = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    losses = {}
    for share in _SHARES:
        _mix(parameters, start, end, share)
        losses[share] = _validation_loss(trainer)
    best = min(losses, key=losses.__getitem__)
    _mix(parameters, start, end, best)
    found = ", ".join(f"{100 * share:.0f} %: {loss:.3f}" for share, loss in losses.items())
    logger.info(
        "the way from the frozen solution to the trained weights: loss after %s; %.0f %% is kept", found, 100 * best
    )


def _mix(
    parameters: Mapping[str, Tensor], start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float
) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(torch.lerp(start[name].to(parameter), end[name], share))


def _validation_loss(trainer: Any) -> float:
    subset = trainer.cfg.dataset.valid_subset.split(",")[0]
    batches = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with metrics.aggregate(new_root=True) as validation:
        for batch in batches:
            trainer.valid_step(batch)
    return float(validation.get_smoothed_value("loss"))
