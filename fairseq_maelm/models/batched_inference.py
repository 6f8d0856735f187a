"""Compute a model's results for many items in batches of near-equal length."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from numpy.typing import NDArray
from tqdm import tqdm

Places = NDArray[np.int64]


def batches_by_length(
    lengths: Sequence[int] | NDArray[Any], batch_tokens: int | None = None, batch_size: int | None = None
) -> list[Places]:
    """Group sequences of similar length, the longest first, so that running out of memory happens in the first batch.

    A limit is necessary: ``batch_tokens`` includes padding, and a longer sequence gets its own batch; ``batch_size`` is
    a number of sequences.
    """
    for name, limit in (("batch_tokens", batch_tokens), ("batch_size", batch_size)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be at least 1, not {limit}")
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches, first = [], 0
    while first < len(order):
        limits = [batch_size, batch_tokens and max(1, batch_tokens // int(lengths[order[first]]))]
        batches.append(order[first : first + min(limit for limit in limits if limit)])
        first += len(batches[-1])
    return batches


def predict(
    model: Any,
    lengths: Sequence[int] | NDArray[Any],
    collate: Callable[[Places], Any],
    forward: Callable[[Any], Iterable[Any]],
    batch_tokens: int | None = None,
    batch_size: int | None = None,
    progress: str | None = None,
) -> list[Any]:
    """Run a model over all items, in evaluation mode and without gradients; return one result per item.

    ``lengths`` are in tokens. ``collate`` makes a batch of the items at given indices; ``forward`` takes it on the
    model's device and returns one result per item. ``progress`` is the label of a progress bar. For the limits see
    ``batches_by_length``.
    """
    device = next(model.parameters()).device
    results: list[Any] = [None] * len(lengths)
    training = model.training
    model.eval()
    bar = tqdm(total=len(lengths), desc=progress, unit=" examples", mininterval=1, disable=progress is None)
    try:
        with torch.no_grad(), bar:
            for indices in batches_by_length(lengths, batch_tokens, batch_size):
                batch = utils.apply_to_sample(lambda tensor: tensor.to(device), collate(indices))
                for index, result in zip(indices.tolist(), forward(batch), strict=True):
                    results[index] = result
                bar.update(len(indices))
    finally:
        model.train(training)
    return results
