"""The task of topics: any number of labels for a text. Its criterion is below; fairseq finds both by their name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.tasks import register_task
from omegaconf import MISSING

from fairseq_maelm.batch import whole_sequences
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.finetuning.tables import Example, read_table
from fairseq_maelm.models.labels import Sets
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTaskConfig
from fairseq_maelm.tasks.finetuning import FineTuningCriterion, FineTuningTask, NoOptions
from fairseq_maelm.text.vocabulary import open_encoder

LABELS = "labels.txt"


def read_examples(path: Path) -> list[Example]:
    """Read lines of a text, or of a text, a tab, and labels with commas between."""
    return list(read_table(path, texts=1, label_separator=","))


class TopicsDataset(BatchDataset):
    """The examples of a file. ``BatchDataset`` makes batches of similar length, the same after a resumed run."""

    def __init__(self, path: Path, task: "TopicsTask", training: bool) -> None:
        examples = read_examples(path)
        self.targets = np.array([task.labels.target(each.label or (), each.place) for each in examples])
        start, end = [task.dictionary.bos()], [task.dictionary.eos()]
        # ``encode`` ends each text with </s>.
        encoded = open_encoder(path.parent).encode([text for each in examples for text in each.texts])
        self.rows = [np.concatenate([start, tokens[:-1][: task.longest - 2], end]) for tokens in encoded]
        self.padding = task.dictionary.pad()
        self.described, self.warnings = f"{len(examples)} texts", ()  # for the log
        sizes = np.array([len(row) for row in self.rows])
        super().__init__(sizes, "buckets", task.cfg.seed, fixed_epoch=None if training else 0)

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Collate B examples: ``target`` <bool>[B, labels], and the input of the model."""
        rows = [self.rows[index] for index in indices]
        batch = whole_sequences(rows, self.sizes[indices], self.padding, self.width(indices))
        return {**batch, "target": torch.from_numpy(self.targets[indices])}


@dataclass
class TopicsTaskConfig(EncoderTaskConfig):
    """Options of the task; each is an option of fairseq-train."""

    data: str = option(MISSING, help="folder with train.tsv, valid.tsv, labels.txt and the vocabulary")
    tokens_per_sample: int = option(512, help="maximum number of tokens in an example; longer ones are truncated")


@register_task("maelm_topics", dataclass=TopicsTaskConfig)
class TopicsTask(FineTuningTask):
    """Predict which labels a text has; ``labels`` is what the head's outputs stand for."""

    name = "maelm_topics"
    head = "topics_head"
    # Copied into the folder of checkpoints, so that they can be used without the data.
    setup_files = (*FineTuningTask.setup_files, LABELS)

    @staticmethod
    def read_labels(config: Any, folders: Sequence[Path]) -> Sets:
        """Read the labels in the first folder that has them; called for training and for each checkpoint."""
        path = next(path for folder in folders if (path := folder / LABELS).is_file())
        return Sets(tuple(path.read_text(encoding="utf-8").split()), separator=",")

    def open_examples(self, split: str, training: bool) -> TopicsDataset:
        """Open a split to train on it or to validate on it."""
        return TopicsDataset(Path(self.cfg.data, f"{split}.tsv"), self, training)


@register_criterion("maelm_topics", dataclass=NoOptions)
class TopicsCriterion(FineTuningCriterion):
    """Binary cross-entropy; the base class asks the labels for it and for the metrics."""
