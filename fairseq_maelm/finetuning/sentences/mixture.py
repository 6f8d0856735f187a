"""Choose, after training, between the weights before the first update, those after the last, and mixtures of both.

With few examples, training from the frozen solution may learn much or only memorize. Too few examples are held out to
tell by accuracy, but their loss can. Weights on the line between the two ends are often better than either (Wortsman et
al., 2022, "Robust fine-tuning of zero-shot models").

Training to the end makes scores too large: the loss then rises although more answers are right. So each mixture is
judged by its least loss after division of all scores by a temperature (Guo et al., 2017, "On calibration of modern
neural networks"), and the temperature is kept, which changes no answer.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor, nn

logger = logging.getLogger(__name__)

# How far the mixtures go from the weights before the first update to those after the last.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Divisors of the scores; numbers have none.
_TEMPERATURES = (1, 2, 4, 8)


@torch.no_grad()
def take_best_mixture(trainer: Any, start: Mapping[str, Tensor], last_layer: nn.Linear, calibrates: bool) -> None:
    """Give the model the mixture of weights with the least loss on the first validation set; call it on all ranks.

    Args:
        trainer: the trainer after its last update.
        start: the weights before the first update, by name.
        last_layer: the layer of the head that computes the scores.
        calibrates: whether scores may be divided by a temperature, which is then kept.
    """
    parameters = dict(trainer.get_model().named_parameters())
    end = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    losses = {}
    for share in _SHARES:
        for temperature in _TEMPERATURES if calibrates else (1,):
            _mix(parameters, start, end, share, last_layer, temperature)
            losses[share, temperature] = _validation_loss(trainer)
    best, temperature = min(losses, key=losses.__getitem__)
    _mix(parameters, start, end, best, last_layer, temperature)
    least = {share: min(loss for (other, _), loss in losses.items() if other == share) for share in _SHARES}
    found = ", ".join(f"{100 * share:.0f} %: {loss:.3f}" for share, loss in least.items())
    divided = f", with scores divided by {temperature}" if temperature > 1 else ""
    logger.info(
        "the way from the frozen solution to the trained weights: loss after %s; %.0f %% is kept%s",
        found, 100 * best, divided,
    )  # fmt: skip


def _mix(
    parameters: Mapping[str, Tensor], start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float,
    last_layer: nn.Linear, temperature: int,
) -> None:  # fmt: skip
    for name, parameter in parameters.items():
        parameter.copy_(torch.lerp(start[name].to(parameter), end[name], share))
    for parameter in last_layer.parameters():
        parameter.div_(temperature)


def _validation_loss(trainer: Any) -> float:
    subset = trainer.cfg.dataset.valid_subset.split(",")[0]
    batches = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with metrics.aggregate(new_root=True) as validation:
        for batch in batches:
            trainer.valid_step(batch)
    return float(validation.get_smoothed_value("loss"))
