"""The fairseq task and criterion of token labeling, with one label per word."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_maelm.data.token_files import check_array
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.tagging.dataset import TaggingDataset
from fairseq_maelm.finetuning.tagging.prepare import TaggedSplit, TaggingSettings, read_settings
from fairseq_maelm.finetuning.tagging.schemes import ACCURACY, ENTITY_METRICS, score
from fairseq_maelm.finetuning.task_folder import load_split
from fairseq_maelm.models.labels import Labels
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTaskConfig
from fairseq_maelm.tasks.finetuning import FineTuningCriterion, FineTuningTask, NoOptions
from fairseq_maelm.text.dictionary import MASK

logger = logging.getLogger(__name__)

HEAD = "tagging_head"


@dataclass
class TaggingTaskConfig(EncoderTaskConfig):
    """Options of the task."""

    data: str = option(MISSING, help="folder written by `maelm prepare tagging`")
    tokens_per_sample: int = option(
        512, help="maximum number of tokens in a window of a sentence, <s> and </s> included", minimum=3
    )
    window_overlap: int = option(64, help="minimum number of pieces that neighboring windows of a sentence share")


@dataclass(frozen=True)
class Tags(Labels):
    """The labels of words."""

    settings: TaggingSettings | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Accuracy, and the metrics of entities if labels mark any."""
        return ENTITY_METRICS if self.settings is not None and self.settings.has_entities else ACCURACY


@register_task("maelm_tagging", dataclass=TaggingTaskConfig)
class TaggingTask(FineTuningTask):
    """Token labeling, which classifies the encoder's state at the first piece of each word."""

    name = "maelm_tagging"
    head = HEAD
    setup_files = (*FineTuningTask.setup_files, MANIFEST_FILE)

    def __init__(self, cfg: Any, dictionary: Dictionary, labels: Tags) -> None:
        super().__init__(cfg, dictionary, labels)
        if not 0 <= cfg.window_overlap < cfg.tokens_per_sample - 2:
            raise ValueError(
                f"--window-overlap must be between 0 and --tokens-per-sample - 3 = {cfg.tokens_per_sample - 3}, not "
                f"{cfg.window_overlap}"
            )
        self.settings: Any = labels.settings

    @staticmethod
    def read_labels(config: Any, folders: Sequence[Path]) -> Tags | None:
        """Return the labels in a folder's manifest; see ``fairseq_maelm.models.labels.read_labels``."""
        # A folder of text has a manifest without labels.
        found = (folder for folder in folders if (folder / MANIFEST_FILE).is_file())
        settings = next((read_settings(each) for each in found if "tagging" in read_json(each / MANIFEST_FILE)), None)
        return None if settings is None else Tags(settings.labels, settings)

    @classmethod
    def setup_task(cls, cfg: Any, *from_checkpoint: bool, **options: Any) -> "FineTuningTask":
        """Load the dictionary and the labels, and build the task; called by fairseq."""
        settings = read_settings(Path(cfg.data))
        logger.info("%d labels (%s)", len(settings.labels), settings.scheme)
        return super().setup_task(cfg, *from_checkpoint, **options)

    def add_head(self, model: Any) -> None:
        """Add a head for each token's label."""
        model.register_token_head(HEAD, self.labels.outputs, model.config.pooler_dropout)

    def open_examples(self, split: str, training: bool) -> TaggingDataset:
        """Open a split as windows."""
        folder = Path(self.cfg.data)
        content = TaggedSplit(**load_split(folder, "tagging", split))
        check_array(folder / f"{split}.npz", content.pieces, self.dictionary.index(MASK))
        return self.dataset_of(content, shuffle=training)

    def dataset_of(self, content: TaggedSplit, shuffle: bool) -> TaggingDataset:
        """Cut sentences into windows according to the task's options."""
        return TaggingDataset(content, self.dictionary, self.cfg, self.labels.outputs, shuffle)

    def scores(self, model: Any, sample: Mapping[str, Any]) -> Tensor:
        """Return the scores <float32>[W, labels] of words, those at their first pieces."""
        return super().scores(model, sample).flatten(0, 1).index_select(0, sample["rows"])

    def found(self, sample: Mapping[str, Any], scores: Tensor) -> dict[str, Any]:
        """Return arrays: the index of each window and its sentence, its number of words, and right and found labels."""
        # The number after the last label stands for labels that are not in the training file.
        kind = torch.uint8 if self.labels.outputs < 256 else torch.int32
        columns = {name: sample[name].to(torch.int32) for name in ("id", "sentence", "words")}
        columns |= {"right": sample["target"].to(kind), "found": self.labels.found(scores).to(kind)}
        return {name: column.cpu().numpy() for name, column in columns.items()}

    def rows(self, found: Mapping[str, Any]) -> Iterable[tuple[int, Any]]:
        """Yield (window index, (sentence index, label ids [words], predicted ids [words])) for each window."""
        ends = np.cumsum(found["words"][:-1], dtype=np.int64)
        labels = (np.split(found[name], ends) for name in ("right", "found"))
        return zip(found["id"].tolist(), zip(found["sentence"].tolist(), *labels))

    def measure(self, rows: Mapping[int, Any], labels: Labels) -> dict[str, float]:
        """Join windows into sentences and score them."""
        right: dict[int, list[str]] = defaultdict(list)
        found: dict[int, list[str]] = defaultdict(list)
        # The empty last name stands for labels that are not in the training file; no prediction equals it.
        names = np.array([*labels.names, ""], dtype=object)
        for window in sorted(rows):
            sentence, own, other = rows[window]
            right[sentence] += names[own].tolist()
            found[sentence] += names[other].tolist()
        return score(list(right.values()), list(found.values()), self.settings.has_entities)


@register_criterion("maelm_tagging", dataclass=NoOptions)
class TaggingCriterion(FineTuningCriterion):
    """Cross-entropy of the labels at the first pieces of words, summed over words with a label of the training file.

    It logs ``loss`` in bits per word and, in training, ``accuracy`` of words in percent. In validation the task logs
    accuracy and the metrics of entities for the whole set.
    """
