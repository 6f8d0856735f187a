"""Outputs of a fine-tuned checkpoint for a whole split of sentences."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.models.predicting import predict


@dataclass(frozen=True)
class Scores:
    """What a model says of a split.

    Attributes:
        outputs: <float32>[n, outputs] in the order of the file.
        targets: <int64>[n] classes or <float32>[n] scores in [0, 1]; None of test sets.
    """

    outputs: NDArray[np.float32]
    targets: Optional[NDArray[np.generic]]


def score_split(
    interface: MaelmHubInterface, split: str, batch_size: int, head: str = HEAD, show_progress: bool = True
) -> Scores:
    """Run the model over a split.

    Args:
        interface: as ``load_model`` gives it, on the device to compute on.
        split: such as "valid".
        batch_size: examples at a time.
    """
    interface.task.load_dataset(split)
    dataset = interface.task.datasets[split]
    sizes = np.array([dataset.size(number) for number in range(len(dataset))])
    limit = interface.model.max_positions()
    if sizes.max() > limit:
        raise ValueError(
            f"split {split} has examples of up to {sizes.max()} tokens and the model has {limit} positions: prepare "
            f"the task with --max-positions {limit}"
        )

    def run(sample: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        scores, _ = interface.model(
            sample["net_input"]["src_tokens"], features_only=True, classification_head_name=head
        )
        targets = sample["target"].view(-1).cpu().numpy() if "target" in sample else itertools.repeat(None)
        return zip(scores.float().cpu().numpy(), targets)

    results = predict(
        interface.model,
        sizes,
        lambda places: dataset.collater([dataset[int(place)] for place in places]),
        run,
        batch_size=batch_size,
        progress=split if show_progress else None,
    )
    outputs, targets = zip(*results)
    return Scores(np.stack(outputs), None if targets[0] is None else np.array(targets))
