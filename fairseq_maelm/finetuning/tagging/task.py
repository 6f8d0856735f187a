"""The fairseq task and criterion of token labeling, with one label per word."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_maelm.data.token_files import check_array
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.criterion_base import FineTuningCriterion, NoOptions
from fairseq_maelm.finetuning.dataset_metrics import log_collected
from fairseq_maelm.finetuning.tagging.dataset import TaggingDataset
from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit, TaggingSettings, read_settings
from fairseq_maelm.finetuning.tagging.schemes import ACCURACY, ENTITY_METRICS, score
from fairseq_maelm.finetuning.task_folder import load_split
from fairseq_maelm.models.labels import Labels
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTask, EncoderTaskConfig
from fairseq_maelm.text.dictionary import MASK, load_dictionary

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


@register_task("maelm_tagging", dataclass=TaggingTaskConfig)
class TaggingTask(EncoderTask):
    """Token labeling, which classifies the encoder's state at the first piece of each word."""

    name = "maelm_tagging"
    setup_files = (*EncoderTask.setup_files, MANIFEST_FILE)

    def __init__(self, cfg: Any, dictionary: Dictionary, settings: TaggingSettings) -> None:
        super().__init__(cfg, dictionary, cfg.tokens_per_sample)
        if not 0 <= cfg.window_overlap < cfg.tokens_per_sample - 2:
            raise ValueError(
                f"--window-overlap must be between 0 and --tokens-per-sample - 3 = {cfg.tokens_per_sample - 3}, not "
                f"{cfg.window_overlap}"
            )
        self.settings = settings

    @staticmethod
    def read_labels(config: Any, folders: Sequence[Path]) -> Labels | None:
        """Return the labels in a folder's manifest; see ``fairseq_maelm.models.labels.read_labels``."""
        manifests = (read_json(folder / MANIFEST_FILE) for folder in folders if (folder / MANIFEST_FILE).is_file())
        # A folder of text has a manifest without labels.
        found = (content["tagging"]["labels"] for content in manifests if "tagging" in content)
        return next((Labels(tuple(map(str, names))) for names in found), None)

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "TaggingTask":
        """Load the dictionary and the labels, and build the task; called by fairseq."""
        settings = read_settings(Path(cfg.data))
        logger.info("%d labels (%s)", len(settings.labels), settings.scheme)
        return cls(cfg, load_dictionary(cfg.data), settings)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model with a head that has one output per label."""
        model = super().build_model(cfg, from_checkpoint)
        model.register_token_head(HEAD, len(self.settings.labels), model.config.pooler_dropout)
        return model

    def open_split(self, split: str, training: bool, *unused: Any) -> TaggingDataset:
        """Open a split as windows."""
        folder = Path(self.cfg.data)
        content = TaggedSplit(**load_split(folder, "tagging", split))
        check_array(folder / f"{split}.npz", content.pieces, self.dictionary.index(MASK))
        dataset = self.dataset_of(content, shuffle=training)
        sentences = len(content.word_counts)
        logger.info(
            "%s: %s sentences in %s windows of up to %d tokens",
            *(split, f"{sentences:,}", f"{len(dataset):,}", self.cfg.tokens_per_sample),
        )
        if dataset.cut_words:
            logger.warning("%s: %d words are longer than a window and are truncated", split, dataset.cut_words)
        return dataset

    def dataset_of(self, content: TaggedSplit, shuffle: bool) -> TaggingDataset:
        """Cut sentences into windows according to the task's options."""
        return TaggingDataset(content, self.dictionary, self.cfg, shuffle)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Log the criterion's metrics and, in validation, the metrics of the whole set."""
        super().reduce_metrics(logging_outputs, criterion)
        if rows := window_rows(logging_outputs):
            names = ENTITY_METRICS if self.settings.has_entities else ACCURACY
            log_collected(rows, self.metrics, names)

    def metrics(self, rows: dict[int, Any]) -> dict[str, float]:
        """Join the windows of ``window_rows`` into sentences and score them."""
        gold: dict[int, list[str]] = defaultdict(list)
        predicted: dict[int, list[str]] = defaultdict(list)
        # The empty last name stands for labels that are not in the training file; no prediction equals it.
        names = np.array([*self.settings.labels, ""], dtype=object)
        for window in sorted(rows):
            sentence, own, other = rows[window]
            gold[sentence] += names[own].tolist()
            predicted[sentence] += names[other].tolist()
        return score(list(gold.values()), list(predicted.values()), self.settings.has_entities)


def window_rows(logging_outputs: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Return (window index, (sentence index, label ids [words], predicted ids [words])) for each window."""
    rows: list[tuple[int, Any]] = []
    for output in logging_outputs:
        if "predictions" in output:
            windows, sentences, words, labels, predicted = output["predictions"]
            ends = np.cumsum(words[:-1], dtype=np.int64)
            columns = (sentences.tolist(), np.split(labels, ends), np.split(predicted, ends))
            rows += zip(windows.tolist(), zip(*columns))
    return rows


@register_criterion("maelm_tagging", dataclass=NoOptions)
class TaggingCriterion(FineTuningCriterion):
    """Cross-entropy of the labels at the first pieces of words, summed over words.

    It logs ``loss`` in bits per word and, in training, ``accuracy`` of words in percent. In validation the task logs
    accuracy and the metrics of entities for the whole set, from the predictions that this criterion collects.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of one batch of ``TaggingDataset``.

        Returns:
            the loss in nats, summed over words; the number of these words as the sample size; and the values to log. In
            validation, the loss and the sample size exclude words whose label is not in the training file.
        """
        logits, _ = model(**sample["net_input"], classification_head_name=HEAD)
        logits = logits.flatten(0, 1).index_select(0, sample["rows"]).float()
        target, labels = sample["target"], logits.shape[1]
        loss = F.cross_entropy(logits, target, reduction="sum", ignore_index=labels)
        predicted = logits.argmax(dim=1)
        if model.training:
            return self.result(sample, loss, target.numel(), (predicted == target).sum())
        # Few bytes, because ranks exchange them. The number after the last label stands for labels that are not in the
        # training file.
        label_type = torch.uint8 if labels < 256 else torch.int32
        types = (torch.int32, torch.int32, torch.int32, label_type, label_type)
        columns = (sample["id"], sample["sentence"], sample["words"], target, predicted)
        found = tuple(column.to(kind).cpu().numpy() for column, kind in zip(columns, types))
        return self.result(sample, loss, int((target < labels).sum()), predictions=found)
