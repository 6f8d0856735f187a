"""The task of classifying or scoring sentences and pairs of sentences."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from fairseq_maelm.fairseq_fixes.private import remember
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentences.criterion import SentencesCriterion
from fairseq_maelm.finetuning.sentences.dataset import SentencesDataset
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.text.dictionary import class_names, load_dictionary

logger = logging.getLogger(__name__)

__all__ = ["SentencesCriterion", "SentencesTask", "SentencesTaskConfig"]

_LABELS = "label/dict.txt"


@dataclass
class SentencesTaskConfig(FairseqDataclass):
    """Options of the task."""

    data: str = field(
        default=MISSING, metadata={"help": "folder written by `maelm prepare sentences` or `maelm prepare glue`"}
    )
    tokens_per_sample: Optional[int] = field(
        default=None,
        metadata={
            "help": "maximum number of tokens in an example, special tokens included; longer examples are truncated "
            "(default: the model's number of positions)"
        },
    )
    texts: Optional[int] = field(
        default=None, metadata={"help": "number of texts in an example, 1 or 2 (default: that of the data)"}
    )
    seed: int = II("common.seed")


@register_task("maelm_sentences", dataclass=SentencesTaskConfig)
class SentencesTask(EncoderTask):
    """Predict a class or a number for a sentence or a pair; a ``label_dictionary`` of None stands for numbers."""

    name = "maelm_sentences"
    setup_files = (*(f"input0/{name}" for name in EncoderTask.setup_files), _LABELS)

    def __init__(self, cfg: Any, dictionary: Dictionary, label_dictionary: Dictionary | None) -> None:
        # Without the option ``build_model`` sets the limit; fairseq builds the model before it opens any data.
        super().__init__(cfg, dictionary, cfg.tokens_per_sample or 0)
        if cfg.tokens_per_sample is not None and cfg.tokens_per_sample < 6:
            raise ValueError(f"--tokens-per-sample must be at least 6, not {cfg.tokens_per_sample}")
        self.label_dictionary = label_dictionary

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> "SentencesTask":
        """Load the vocabulary and the labels, and build the task; called by fairseq."""
        if not from_checkpoint:
            remember(cfg, texts=1 + (Path(cfg.data) / "input1").is_dir())
        labels = Path(cfg.data) / _LABELS
        dictionary = load_dictionary(str(Path(cfg.data) / "input0"))
        return cls(cfg, dictionary, Dictionary.load(str(labels)) if labels.is_file() else None)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and give it a head with an output for each class, or with one output for numbers."""
        model = super().build_model(cfg, from_checkpoint)
        self.longest = self.longest or model.max_positions()
        classes = 1 if self.label_dictionary is None else len(class_names(self.label_dictionary))
        model.register_classification_head(HEAD, classes)
        return model

    def load_dataset(self, split: str, **unused: Any) -> None:
        """Open a split."""
        folder, limit = Path(self.cfg.data), self.longest
        dataset = SentencesDataset(folder, split, self.dictionary, self.label_dictionary, limit, self.cfg.seed)
        logger.info("%s: %s examples of up to %d tokens", split, f"{len(dataset):,}", dataset.sizes.max(initial=0))
        if dataset.cut:
            logger.warning(
                "%s: %s examples are longer than %d tokens and are truncated", split, f"{dataset.cut:,}", limit
            )
        self.datasets[split] = dataset
