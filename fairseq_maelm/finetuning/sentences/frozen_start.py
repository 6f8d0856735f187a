"""The frozen solution of small tables: where a head's training begins, and a mixture to which it may return.

With a few hundred examples, a head of random weights spends the whole training on what a logistic regression finds at
once, and moves the encoder by gradients that mean nothing until then. So ``fit_head`` gives a head the weights that
predict the labels best from the states of the frozen encoder.

Training from there may learn much or only memorize. Weights on the line between both ends are often better than either
(Wortsman et al., 2022, "Robust fine-tuning of zero-shot models"). Too few examples are held out to choose a point of
this line: each of some points counts by how likely it makes their labels, and the mean of the points is taken. Examples
that cannot tell leave it in the middle; many of them make it the best point. Between two solutions that differ much,
the mean may fit worse than both: the likeliest point is taken then.

Training to the end makes scores too large: the likelihood then falls although more answers are right. So each point is
judged by its greatest likelihood after division of all scores by a temperature (Guo et al., 2017, "On calibration of
modern neural networks"), and the temperature is kept, which changes no class and no correlation.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.labels import Labels
from fairseq_maelm.modules.finetuning_heads import pool

logger = logging.getLogger(__name__)

_MOST_EXAMPLES = 2000  # more cost time and hardly improve a regression
# Strengths of regularization, between which cross-validation chooses.
_INVERSE_PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS = 5
_UNCHOSEN_PENALTY = 0.03  # where a class has too few examples for cross-validation
# The dense layer begins as a multiple of the identity that keeps typical states in the linear part of tanh and GELU.
_TYPICAL = 0.3
# Points of the line from the weights before the first update to those after the last that are tried.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TEMPERATURES = (1, 2, 4, 8)  # divisors of the scores


@torch.no_grad()
def fit_head(
    model: Any,
    head: Any,
    dataset: SentencesDataset,
    device: torch.device,
    class_weights: Sequence[float] | None = None,
) -> str:
    """Set the weights of a new head from the states of the frozen encoder; log and return how well they predict.

    ``model`` is on a CPU before and after; ``device`` computes the states. ``dataset`` is the training split, with
    targets.
    """
    rng = np.random.default_rng(dataset.seed)
    chosen = np.sort(rng.permutation(len(dataset))[:_MOST_EXAMPLES])
    pooled = _pooled_states(model.to(device), head, dataset, chosen)
    model.to("cpu")
    if head.dense_layer.weight.shape[0] == head.dense_layer.weight.shape[1]:
        head.dense_layer.weight.copy_(torch.eye(pooled.shape[1]) * (_TYPICAL / pooled.abs().mean()))
    head.eval()
    features = head.transform(pooled).double().numpy()
    head.train(model.training)
    weight, bias, quality = _regression(
        features, dataset.targets[chosen], np.array(class_weights or [1.0] * len(head.out_proj.bias))
    )
    head.out_proj.weight.copy_(torch.from_numpy(weight))
    head.out_proj.bias.copy_(torch.from_numpy(bias))
    said = f"the head starts from the frozen encoder: {quality} by cross-validation on {len(chosen):,} examples"
    logger.info("%s", said)
    return said


def _pooled_states(model: Any, head: Any, dataset: SentencesDataset, chosen: np.ndarray) -> Tensor:
    def forward(batch: dict[str, Any]) -> Tensor:
        tokens = batch["net_input"]["src_tokens"]
        return pool(model.extract_features(tokens)[0].float(), tokens.ne(model.encoder.padding_idx), head.pooling).cpu()

    def collate(indices: np.ndarray) -> dict[str, Any]:
        return dataset.collate(chosen[indices])

    return torch.stack(predict(model, dataset.sizes[chosen].tolist(), collate, forward, batch_size=32))


def _regression(features: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Return weights <float>[outputs, D] and biases <float>[outputs] for features <float>[n, D], and their quality."""
    mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    normalized = (features - mean) / scale
    if targets.dtype == np.float32:
        weight, bias, quality = _of_numbers(normalized, targets)
    elif targets.dtype == np.bool_:
        weight, bias, quality = _of_sets(normalized, targets)
    else:
        weight, bias, quality = _of_classes(normalized, targets, weights)
    weight = weight / scale
    return weight, bias - weight @ mean, quality


def _of_numbers(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    from sklearn.linear_model import RidgeCV

    ridge = RidgeCV(alphas=np.logspace(0, 5, 11), cv=min(_FOLDS, len(targets)), scoring="neg_mean_squared_error")
    ridge.fit(features, targets)
    explained = max(0.0, 1.0 + ridge.best_score_ / max(float(targets.var()), 1e-12))
    return ridge.coef_[None], np.array([ridge.intercept_]), f"{100 * explained:.0f} % of the variance"


def _of_sets(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    rows = [_of_classes(features, column.astype(np.int64), np.ones(2)) for column in targets.T]
    # A label's one score is the difference of the two classes' scores.
    weight = np.stack([weight[1] - weight[0] for weight, _, _ in rows])
    bias = np.array([bias[1] - bias[0] for _, bias, _ in rows])
    return weight, bias, f"{len(rows)} labels, each on its own"


def _of_classes(features: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    counts = np.bincount(targets, minlength=len(weights))
    present = np.flatnonzero(counts)
    weight = np.zeros((len(weights), features.shape[1]))
    # A class without examples begins as rarer than one with a single example.
    bias = np.log(np.maximum(counts, 0.5) * weights / len(targets))
    if len(present) < 2:
        return weight, bias, "one class"
    penalty, quality = _UNCHOSEN_PENALTY, "too few examples of a class to measure it"
    folds, targets, weights = (
        int(min(_FOLDS, counts[present].min())),
        np.searchsorted(present, targets),
        weights[present],
    )
    if folds > 1:
        penalty, accuracy = _choose_penalty(features, targets, weights, folds)
        quality = f"{100 * accuracy:.1f} % accuracy"
    model = _logistic(penalty, weights).fit(features, targets)
    found, intercept = model.coef_, model.intercept_
    if len(present) == 2:
        found, intercept = np.concatenate([-found, found]) / 2, np.concatenate([-intercept, intercept]) / 2
    weight[present], bias[present] = found, intercept
    return weight, bias, quality


def _logistic(penalty: float, weights: np.ndarray) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=penalty, class_weight=dict(enumerate(weights)), max_iter=1000)


def _choose_penalty(features: np.ndarray, targets: np.ndarray, weights: np.ndarray, folds: int) -> tuple[float, float]:
    """Return the inverse penalty of the least cross-validated loss, and its accuracy; all classes have examples."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    splits = StratifiedKFold(folds, shuffle=True, random_state=0)
    results = []
    for penalty in _INVERSE_PENALTIES:
        model = _logistic(penalty, weights)
        probabilities = cross_val_predict(model, features, targets, cv=splits, method="predict_proba")
        loss = -(weights[targets] * np.log(probabilities[np.arange(len(targets)), targets])).mean()
        results.append((loss, penalty, (probabilities.argmax(axis=1) == targets).mean()))
    _, best, accuracy = min(results)
    return best, float(accuracy)


class Fit(NamedTuple):
    """How well scores fit the labels, at the best temperature."""

    loss: float  # negative log-likelihood of all labels in nats
    temperature: int  # divisor of the scores' distance from the center
    center: float  # the mean of predicted numbers; zero for classes


@torch.no_grad()
def mix_with_start(
    task: Any,
    model: Any,
    start: Mapping[str, Tensor],
    dataset: SentencesDataset,
    class_weights: Sequence[float] | None = None,
) -> None:
    """Give the model the mean of the mixtures, weighted by the likelihood of the held-out labels.

    If an end fits better than the mean, the likeliest of the points is kept instead. ``start`` has the weights before
    the first update, by name. Each rank computes all scores, so that all take the same mixture.
    """
    targets, labels = torch.from_numpy(dataset.targets), dataset.labels
    parameters = dict(model.named_parameters())
    end = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def scores_of(batch: dict[str, Any]) -> Tensor:
        return task.scores(model, batch).cpu()

    def fit_at(share: float) -> Fit:
        for name, parameter in parameters.items():
            parameter.copy_(torch.lerp(start[name].to(parameter), end[name], share))
        scores = predict(model, dataset.sizes, dataset.collate, scores_of, batch_size=32)
        return fit(torch.stack(scores), targets, labels, class_weights)

    losses = torch.tensor([fit_at(share).loss for share in _SHARES], dtype=torch.double)
    share = float(torch.softmax(-losses, dim=0) @ torch.tensor(_SHARES, dtype=torch.double))
    kept = fit_at(share)
    if kept.loss > min(losses[0], losses[-1]):
        share = _SHARES[int(losses.argmin())]
        kept = fit_at(share)
    last_layer = model.classification_heads[task.head].out_proj
    last_layer.weight.div_(kept.temperature)
    last_layer.bias.sub_(kept.center).div_(kept.temperature).add_(kept.center)
    logger.info(
        "the way from the frozen solution to the trained weights: %s nats; %.0f %% is kept: %.2f%s",
        ", ".join(f"{100 * point:.0f} %: {loss:.2f}" for point, loss in zip(_SHARES, losses.tolist(), strict=True)),
        100 * share, kept.loss, f", with scores divided by {kept.temperature}" * (kept.temperature > 1),
    )  # fmt: skip


def fit(scores: Tensor, targets: Tensor, labels: Labels, class_weights: Sequence[float] | None = None) -> Fit:
    """Return how well scores <float>[n, outputs] fit, at the best temperature; classes weigh as in training."""
    weights = None if class_weights is None else scores.new_tensor(class_weights)
    center = 0.0 if labels.is_likelihood else float(scores.mean())
    fits = []
    for temperature in _TEMPERATURES:
        divided = (scores - center) / temperature + center
        if labels.is_likelihood:
            loss = labels.loss(divided, targets, weights)
        else:
            # Errors are normal, with the variance that makes them most likely.
            loss = len(targets) / 2 * F.mse_loss(divided[:, 0], targets).clamp_min(1e-12).log()
        fits.append(Fit(float(loss), temperature, center))
    return min(fits)
