"""The task of topics: any number of labels for a text. Its criterion is below; fairseq finds both by their name."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.finetuning.criterion_base import FineTuningCriterion, NoOptions
from fairseq_maelm.tasks.encoder_task import EncoderTask, EncoderTaskConfig
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import open_encoder

HEAD = "topics_head"
LABELS = "labels.txt"


def read_examples(path: Path, labels: list[str]) -> tuple[list[str], np.ndarray]:
    """Read lines of a text, a tab, and labels with commas between; return texts and <float32>[n, labels], 0 or 1."""
    texts, rows = [], []
    for number, line in numbered_lines(path):
        text, _, given = line.partition("\t")
        names = [name for name in given.split(",") if name]
        unknown = [name for name in names if name not in labels]
        if unknown:
            raise ValueError(f"{path}:{number}: the label {unknown[0]!r} is not in {LABELS}")
        texts.append(text)
        rows.append([name in names for name in labels])
    return texts, np.array(rows, dtype=np.float32)


class TopicsDataset(BatchDataset):
    """The examples of a file. ``BatchDataset`` makes batches of similar length, the same after a resumed run."""

    def __init__(
        self, path: Path, labels: list[str], dictionary: Dictionary, limit: int, seed: int, training: bool
    ) -> None:
        texts, self.targets = read_examples(path, labels)
        start, end = [dictionary.bos()], [dictionary.eos()]
        # ``encode`` ends each text with </s>.
        encoded = [tokens[:-1][: limit - 2] for tokens in open_encoder(path.parent).encode(texts)]
        self.rows = [np.concatenate([start, tokens.astype(np.int64), end]) for tokens in encoded]
        self.padding = dictionary.pad()
        sizes = np.array([len(row) for row in self.rows])
        super().__init__(sizes, "buckets", seed, fixed_epoch=None if training else 0)

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Collate B examples: ``target`` <float32>[B, labels], ``src_tokens`` <int64>[B, S] and what fairseq counts."""
        lengths = self.sizes[indices]
        tokens = pad_rows([self.rows[index] for index in indices], lengths, self.padding)
        net_input = {"src_tokens": torch.from_numpy(tokens), "src_lengths": torch.from_numpy(lengths)}
        return {
            "ntokens": int(lengths.sum()),
            "target": torch.from_numpy(self.targets[indices]),
            "net_input": net_input,
        }


@dataclass
class TopicsTaskConfig(EncoderTaskConfig):
    """Options of the task; each is an option of fairseq-train."""

    data: str = field(
        default=MISSING, metadata={"help": "folder with train.tsv, valid.tsv, labels.txt and the vocabulary"}
    )
    tokens_per_sample: int = field(
        default=512, metadata={"help": "maximum number of tokens in an example; longer ones are truncated"}
    )


@register_task("maelm_topics", dataclass=TopicsTaskConfig)
class TopicsTask(EncoderTask):
    """Predict which labels a text has."""

    name = "maelm_topics"
    # Copied into the folder of checkpoints, so that they can be used without the data.
    setup_files = (*EncoderTask.setup_files, LABELS)

    def __init__(self, cfg: Any, dictionary: Dictionary, labels: list[str]) -> None:
        super().__init__(cfg, dictionary, cfg.tokens_per_sample)
        self.labels = labels

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "TopicsTask":
        """Read the vocabulary and the labels; called by fairseq, for training and for each checkpoint."""
        labels = (Path(cfg.data) / LABELS).read_text(encoding="utf-8").split()
        return cls(cfg, load_dictionary(cfg.data), labels)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the encoder and give it a head with an output for each label."""
        model = super().build_model(cfg, from_checkpoint)
        model.register_classification_head(HEAD, len(self.labels))
        return model

    def open_split(self, split: str, training: bool, *unused: Any) -> TopicsDataset:
        """Open a split to train on it or to validate on it."""
        path = Path(self.cfg.data) / f"{split}.tsv"
        return TopicsDataset(path, self.labels, self.dictionary, self.longest, self.cfg.seed, training)


@register_criterion("maelm_topics", dataclass=NoOptions)
class TopicsCriterion(FineTuningCriterion):
    """Binary cross-entropy, summed over a text's labels; it logs ``loss`` in bits per text, and ``f1`` in percent."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss of B texts, B, by which fairseq divides the gradient, and the values to log."""
        scores, _ = model(**sample["net_input"], features_only=True, classification_head_name=HEAD)
        target, scores = sample["target"], scores.float()
        loss = F.binary_cross_entropy_with_logits(scores, target, reduction="sum")
        predicted = (scores > 0).float()
        counts = {"right": int((predicted * target).sum()), "named": int((predicted + target).sum())}
        return self.result(sample, loss, len(target), **counts)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss and F1, over all texts and labels, of all batches and ranks."""
        super().reduce_metrics(logging_outputs)
        for name in ("right", "named"):
            # fairseq does not print names that begin with an underscore.
            metrics.log_scalar(f"_{name}", sum(output.get(name, 0) for output in logging_outputs))
        metrics.log_derived("f1", lambda meters: f1(meters["_right"].sum, meters["_named"].sum))


def f1(right: float, named: float) -> float:
    """Return F1 in percent: of ``named`` predicted and given labels together, ``right`` agree."""
    return 200.0 * right / named if named else math.nan
