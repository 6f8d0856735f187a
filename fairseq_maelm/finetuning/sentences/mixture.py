"""Mix, after training, the weights before the first update with those after the last, as held-out examples tell.

With few examples, training from the frozen solution may learn much or only memorize. Weights on the line between both
ends are often better than either (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models"). Too few examples
are held out to choose a point of this line: each of some points counts by how likely it makes their labels, and the
mean of the points is taken. Examples that cannot tell leave it in the middle; many of them make it the best point.
Between two solutions that differ much, the mean may fit worse than both: the likeliest point is taken then.

Training to the end makes scores too large: the likelihood then falls although more answers are right. So each point is
judged by its greatest likelihood after division of all scores by a temperature (Guo et al., 2017, "On calibration of
modern neural networks"), and the temperature is kept, which changes no class and no correlation.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset
from fairseq_maelm.models.batched_inference import predict

logger = logging.getLogger(__name__)

# Points of the line from the weights before the first update to those after the last that are tried.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Divisors of the scores.
_TEMPERATURES = (1, 2, 4, 8)


class Fit(NamedTuple):
    """How well scores fit the labels, at the best temperature."""

    loss: float
    """Negative log-likelihood of all labels in nats."""
    temperature: int
    """Divisor of the scores' distance from the center."""
    center: float
    """The mean of predicted numbers; zero for classes."""


@torch.no_grad()
def mix_with_start(
    model: Any,
    start: Mapping[str, Tensor],
    head: str,
    dataset: SentencesDataset,
    class_weights: Sequence[float] | None = None,
) -> None:
    """Give the model the mean of the mixtures, weighted by the likelihood of the held-out labels.

    If an end fits better than the mean, the likeliest of the points is kept instead.

    Each rank computes all scores, so that all take the same mixture.

    Args:
        model: the model after the last update.
        start: the weights before the first update, by name.
        head: name of the classification head.
        dataset: the held-out examples, with targets.
        class_weights: as in ``fit``.
    """
    targets = torch.from_numpy(dataset.targets)
    parameters = dict(model.named_parameters())
    end = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def fit_at(share: float) -> Fit:
        for name, parameter in parameters.items():
            parameter.copy_(torch.lerp(start[name].to(parameter), end[name], share))
        return fit(_scores(model, head, dataset), targets, class_weights)

    losses = torch.tensor([fit_at(share).loss for share in _SHARES], dtype=torch.double)
    share = float(torch.softmax(-losses, dim=0) @ torch.tensor(_SHARES, dtype=torch.double))
    kept = fit_at(share)
    if kept.loss > min(losses[0], losses[-1]):
        share = _SHARES[int(losses.argmin())]
        kept = fit_at(share)
    last_layer = model.classification_heads[head].out_proj
    last_layer.weight.div_(kept.temperature)
    last_layer.bias.sub_(kept.center).div_(kept.temperature).add_(kept.center)
    logger.info(
        "the way from the frozen solution to the trained weights: %s nats; %.0f %% is kept: %.2f%s",
        ", ".join(f"{100 * point:.0f} %: {loss:.2f}" for point, loss in zip(_SHARES, losses.tolist(), strict=True)),
        100 * share, kept.loss, f", with scores divided by {kept.temperature}" * (kept.temperature > 1),
    )  # fmt: skip


def fit(scores: Tensor, targets: Tensor, class_weights: Sequence[float] | None = None) -> Fit:
    """Return how well the scores of n examples fit, at the best temperature.

    Args:
        scores: scores of classes or labels <float>[n, outputs], or numbers <float>[n, 1].
        targets: class indices <int64>[n], sets of labels <bool>[n, outputs], or numbers <float>[n].
        class_weights: a weight of the examples of each class, as in training; None for equal ones.
    """
    weights = None if class_weights is None else scores.new_tensor(class_weights)
    numbers = targets.is_floating_point()
    center = float(scores.mean()) if numbers else 0.0
    fits = []
    for temperature in _TEMPERATURES:
        divided = (scores - center) / temperature + center
        if numbers:
            # Errors are normal, with the variance that makes them most likely.
            loss = len(targets) / 2 * F.mse_loss(divided[:, 0], targets).clamp_min(1e-12).log()
        elif targets.dtype == torch.bool:
            loss = F.binary_cross_entropy_with_logits(divided, targets.float(), reduction="sum")
        else:
            loss = F.cross_entropy(divided, targets, weights, reduction="sum")
        fits.append(Fit(float(loss), temperature, center))
    return min(fits)


def _scores(model: Any, head: str, dataset: SentencesDataset) -> Tensor:
    """Return the scores <float>[n, outputs] of all examples, on a CPU."""

    def forward(batch: dict[str, Any]) -> Tensor:
        return model(**batch["net_input"], features_only=True, classification_head_name=head)[0].float().cpu()

    return torch.stack(predict(model, dataset.sizes, dataset.collate, forward, batch_size=32))
