"""From a fine-tuned checkpoint to predictions in GLUE's submission format, and to metrics of the dev sets."""

from pathlib import Path

import numpy as np

from fairseq_maelm.finetuning.glue.prepared import TaskFolder
from fairseq_maelm.finetuning.glue_layout import HIGHEST_SCORE, TASKS, submission_name
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics, metric_names
from fairseq_maelm.finetuning.sentence_scores import Scores
from fairseq_maelm.models import hub
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.text.dictionary import class_names


def load_model(checkpoint: Path, folder: TaskFolder, head: str = HEAD) -> MaelmHubInterface:
    """Load a checkpoint that was fine-tuned on the task."""
    # First what was trained: another task's options would fail on this task's folder with words of their own.
    heads = read_checkpoint(checkpoint).heads
    if head not in heads:
        raise ValueError(
            f"{checkpoint} has no head {head!r} (it has: {', '.join(heads) or 'none'}): fine-tune it on the task first"
        )
    outputs = heads[head][0]
    expected = 1 if folder.labels is None else len(folder.labels)
    if outputs != expected:
        raise ValueError(
            f"{checkpoint} was fine-tuned on another task: its head has {outputs} outputs, and {folder.task} needs "
            f"{expected}{' of regression' if folder.labels is None else ''}"
        )
    interface = hub.load(str(checkpoint.parent), checkpoint.name, str(folder.path.resolve()))
    if folder.labels is not None and tuple(class_names(interface.task.label_dictionary)) != folder.labels:
        raise ValueError(f"{folder.path}/label/dict.txt does not hold {', '.join(folder.labels)}: prepare it again")
    return interface


def dev_metrics(scores: Scores, folder: TaskFolder) -> dict[str, float]:
    """Metrics of a dev set in percent; see ``fairseq_maelm.finetuning.sentence_metrics``."""
    if scores.targets is None:
        raise ValueError("a split without labels has no metrics")
    if folder.labels is None:
        return compute_metrics(metric_names(True, None), scores.targets, scores.outputs[:, 0])
    label = TASKS[folder.task].positive
    positive = None if label is None else folder.labels.index(label)
    return compute_metrics(metric_names(False, positive), scores.targets, scores.outputs.argmax(axis=1), positive)


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
