"""From a fine-tuned checkpoint to predictions in GLUE's submission format, and to metrics of the dev sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.finetuning.glue.layout import HIGHEST_SCORE, TASKS, submission_name
from fairseq_maelm.finetuning.glue.prepared import TaskFolder
from fairseq_maelm.finetuning.sentence_data import class_names
from fairseq_maelm.finetuning.sentence_metrics import classification_metrics, regression_metrics
from fairseq_maelm.models import hub
from fairseq_maelm.models.checkpoint import classification_heads
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.hub import MaelmHubInterface

HEAD = "sentence_classification_head"


@dataclass(frozen=True)
class Scores:
    """What a model says of a split.

    Attributes:
        outputs: <float32>[n, outputs] in the order of the file.
        targets: <int64>[n] classes or <float32>[n] scores in [0, 1]; None of test sets.
    """

    outputs: NDArray[np.float32]
    targets: Optional[NDArray[np.generic]]


def load_model(checkpoint: Path, folder: TaskFolder, head: str = HEAD) -> MaelmHubInterface:
    """Load a checkpoint that was fine-tuned on the task.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint has no head, one of another size, or another vocabulary.
    """
    # First what was trained: another task's options would fail on this task's folder with words of their own.
    content = read_checkpoint(checkpoint)
    heads = classification_heads(content.weights)
    if head not in heads:
        raise ValueError(
            f"{checkpoint} has no head {head!r} (it has: {', '.join(heads) or 'none'}): fine-tune it on the task first"
        )
    outputs = heads[head][0]
    expected = 1 if folder.labels is None else len(folder.labels)
    regression = bool(content.config.task.get("regression_target", False))
    if outputs != expected or regression != (folder.labels is None):
        raise ValueError(
            f"{checkpoint} was fine-tuned on another task: its head has {outputs} outputs, and {folder.task} needs "
            f"{expected}{' of regression' if folder.labels is None else ''}"
        )
    interface = hub.load(str(checkpoint.parent), checkpoint.name, str(folder.path.resolve()))
    if folder.labels is not None and tuple(class_names(interface.task.label_dictionary)) != folder.labels:
        raise ValueError(f"{folder.path}/label/dict.txt does not hold {', '.join(folder.labels)}: prepare it again")
    return interface


def score_split(
    interface: MaelmHubInterface, split: str, batch_size: int, head: str = HEAD, show_progress: bool = True
) -> Scores:
    """Run the model over a split.

    Args:
        interface: as ``load_model`` gives it, on the device to compute on.
        split: such as "valid".
        batch_size: examples at a time.

    Raises:
        ValueError: an example is longer than the model has positions.
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
    outputs: dict[int, NDArray[np.float32]] = {}
    targets: dict[int, Any] = {}
    interface.eval()
    with torch.no_grad():
        for sample in tqdm(
            _batches(dataset, sizes, batch_size),
            total=-(-len(dataset) // batch_size),
            desc=split,
            unit=" batches",
            mininterval=1,
            disable=not show_progress,
        ):
            tokens = sample["net_input"]["src_tokens"].to(interface.device)
            scores, _ = interface.model(tokens, features_only=True, classification_head_name=head)
            ids = sample["id"].tolist()
            outputs.update(zip(ids, scores.float().cpu().numpy()))
            if "target" in sample:
                targets.update(zip(ids, sample["target"].view(-1).numpy()))
    order = range(len(dataset))
    return Scores(
        np.stack([outputs[key] for key in order]), np.array([targets[key] for key in order]) if targets else None
    )


def _batches(dataset: Any, sizes: NDArray[np.int64], batch_size: int) -> Iterator[dict[str, Any]]:
    """Batches of examples of similar length."""
    order = np.argsort(-sizes, kind="stable")
    for begin in range(0, len(order), batch_size):
        yield dataset.collater([dataset[int(number)] for number in order[begin : begin + batch_size]])


def dev_metrics(scores: Scores, folder: TaskFolder) -> dict[str, float]:
    """Metrics of a dev set in percent; see ``fairseq_maelm.finetuning.sentence_metrics``.

    Raises:
        ValueError: the split has no labels.
    """
    if scores.targets is None:
        raise ValueError("a split without labels has no metrics")
    if folder.labels is None:
        return regression_metrics(scores.outputs[:, 0], scores.targets)
    positive = TASKS[folder.task].positive
    index = None if positive is None else folder.labels.index(positive)
    return classification_metrics(scores.outputs.argmax(axis=1), scores.targets, index)


def submission_text(scores: Scores, folder: TaskFolder, split: str) -> str:
    """The content of a submission file: a line that names the columns, then an index and a prediction a line.

    Predictions are labels as GLUE spells them; of STS-B scores with three decimals, clipped to [0, 5].
    """
    if folder.labels is None:
        numbers = np.clip(scores.outputs[:, 0].astype(np.float64) * HIGHEST_SCORE, 0.0, HIGHEST_SCORE)
        predictions = [f"{number:.3f}" for number in numbers]
    else:
        predictions = [folder.labels[index] for index in scores.outputs.argmax(axis=1)]
    rows = zip(folder.indices(split), predictions, strict=True)
    return "index\tprediction\n" + "".join(f"{index}\t{prediction}\n" for index, prediction in rows)


def prediction_file(folder: TaskFolder, split: str) -> str:
    """Name of the file with a split's predictions: ``MNLI-mm.tsv`` of a test set, ``MNLI-mm.dev.tsv`` of a dev set."""
    name = submission_name(folder.task, split)
    return f"{name}.tsv" if split.startswith("test") else f"{name}.dev.tsv"
