"""The first weights of a sentence head: those that predict the labels best from the states of the frozen encoder.

With a few hundred examples, a head of random weights spends the whole training on what a logistic regression finds at
once, and moves the encoder by gradients that mean nothing until then.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.modules.finetuning_heads import pool

logger = logging.getLogger(__name__)

# More examples cost time and hardly improve a regression.
_MOST_EXAMPLES = 2000
# Strengths of regularization, between which cross-validation chooses.
_INVERSE_PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS = 5
# Where a class has too few examples for cross-validation.
_UNCHOSEN_PENALTY = 0.03
# The dense layer begins as a multiple of the identity that keeps typical states in the linear part of tanh and GELU.
_TYPICAL = 0.3


@torch.no_grad()
def fit_head(
    model: Any,
    head: Any,
    dataset: SentencesDataset,
    targets: np.ndarray,
    device: torch.device,
    class_weights: Sequence[float] | None = None,
) -> str:
    """Set the weights of a new head from the states of the frozen encoder; log and return how well they predict.

    Args:
        model: the model with the encoder's weights; it is on a CPU before and after.
        head: one of its heads.
        dataset: the training split.
        targets: its labels, as ``load_targets`` returns them.
        device: where to compute the states.
        class_weights: a weight of the examples of each class; None for equal ones.
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
        features, targets[chosen], np.array(class_weights or [1.0] * len(head.out_proj.bias))
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
