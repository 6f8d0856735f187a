"""The loss of token labeling: cross-entropy of the words' labels."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

HEAD = "tagging_head"
# Key of the windows' predictions in the logging output during validation.
PREDICTIONS = "predictions"


@dataclass
class TaggingCriterionConfig(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints instead."""


def window_rows(logging_outputs: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Return for each window its number and that of its sentence, and its labels and predictions [words]."""
    rows: list[tuple[int, Any]] = []
    for output in logging_outputs:
        if PREDICTIONS in output:
            windows, sentences, words, labels, predicted = output[PREDICTIONS]
            ends = np.cumsum(words[:-1], dtype=np.int64)
            columns = (sentences.tolist(), np.split(labels, ends), np.split(predicted, ends))
            rows += zip(windows.tolist(), zip(*columns))
    return rows


@register_criterion("maelm_tagging", dataclass=TaggingCriterionConfig)
class TaggingCriterion(FairseqCriterion):
    """Cross-entropy of the labels at the first pieces of words, summed over words.

    It logs ``loss`` in bits per word and, in training, ``accuracy`` of words in percent. In validation the task logs
    accuracy and the metrics of entities for the whole set, from the predictions that this criterion collects.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of one batch of ``TaggingDataset``.

        Returns:
            the loss in nats, summed over words; their number, by which fairseq divides the gradient; and the values to
            log. In validation, both the loss and the number leave out words whose label is not in the training file.
        """
        logits, _ = model(**sample["net_input"], classification_head_name=HEAD)
        logits = logits.flatten(0, 1).index_select(0, sample["rows"]).float()
        target, labels = sample["target"], logits.shape[1]
        loss = F.cross_entropy(logits, target, reduction="sum", ignore_index=labels)
        predicted = logits.argmax(dim=1)
        words = target.numel() if model.training else int((target < labels).sum())
        output = {
            "loss": loss.detach(),
            "sample_size": words,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "ncorrect": (predicted == target).sum(),
        }
        if not model.training:
            # Few bytes, because ranks exchange them. The number after the last label stands for labels that are not in
            # the training file.
            label_type = torch.uint8 if labels < 256 else torch.int32
            types = (torch.int32, torch.int32, torch.int32, label_type, label_type)
            columns = (sample["id"], sample["sentence"], sample["words"], target, predicted)
            output[PREDICTIONS] = tuple(column.to(kind).cpu().numpy() for column, kind in zip(columns, types))
        return loss, words, output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the metrics of all batches and ranks, and log them."""
        words, loss, correct = (
            sum(float(output.get(name, 0)) for output in logging_outputs)
            for name in ("sample_size", "loss", "ncorrect")
        )
        if not words:
            return
        metrics.log_scalar("loss", loss / words / math.log(2), words, round=4)
        if not any(PREDICTIONS in output for output in logging_outputs):
            metrics.log_scalar("accuracy", 100.0 * correct / words, words, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because in validation they contain the predictions of windows."""
        return False
