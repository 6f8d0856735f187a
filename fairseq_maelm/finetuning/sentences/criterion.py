"""The loss of classifying or scoring sentences, with metrics of the whole validation set."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_maelm.finetuning.dataset_metrics import example_rows, log_predictions
from fairseq_maelm.finetuning.sentence_data import HEAD
from fairseq_maelm.finetuning.sentence_metrics import metric_names, positive_class
from fairseq_maelm.text.dictionary import class_names


@dataclass
class SentencesCriterionConfig(FairseqDataclass):
    """Options of the criterion."""

    positive_label: str = field(
        default="",
        metadata={
            "help": "label that counts as positive in F1, for tasks with two labels; by default the label 1 or "
            "entailment, if there is one"
        },
    )


@register_criterion("maelm_sentences", dataclass=SentencesCriterionConfig)
class SentencesCriterion(FairseqCriterion):
    """Cross-entropy of classes, or the squared error of a number.

    It logs ``loss`` (bits per example, or mean squared error) and ``accuracy`` of classes. For a whole validation set
    it also logs ``mcc``, ``f1`` if one of two labels is positive, or ``pearson`` and ``spearman`` of numbers, all in
    percent.
    """

    def __init__(self, cfg: SentencesCriterionConfig, task: Any) -> None:
        super().__init__(task)
        self.regression = task.label_dictionary is None
        labels = [] if self.regression else class_names(task.label_dictionary)
        self.positive = _positive_class(labels, cfg.positive_label)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of a batch of B examples.

        Returns:
            the loss summed over the batch, in nats or as squared errors; B; and the values to log.
        """
        if "target" not in sample:
            raise ValueError("this split has no labels to validate on: `maelm predict` predicts it")
        scores, _ = model(**sample["net_input"], features_only=True, classification_head_name=HEAD)
        target = sample["target"].view(-1)
        scores = scores.float()
        if self.regression:
            predictions = scores.view(-1)
            loss = F.mse_loss(predictions, target.float(), reduction="sum")
        else:
            predictions = scores.argmax(dim=-1)
            loss = F.cross_entropy(scores, target, reduction="sum")
        output: dict[str, Any] = {
            "loss": loss.detach(),
            "sample_size": len(target),
            "ntokens": sample["ntokens"],
            "nsentences": len(target),
            "regression": self.regression,
        }
        if not self.regression:
            output["ncorrect"] = (predictions == target).sum()
        if not model.training:
            output["positive"] = self.positive
            output.update(example_rows(sample, target, predictions))
        return loss, len(target), output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the metrics of all batches and ranks."""
        examples = sum(output["sample_size"] for output in logging_outputs)
        if not examples:
            return
        regression = any(output["regression"] for output in logging_outputs)
        loss = sum(float(output["loss"]) for output in logging_outputs) / examples
        metrics.log_scalar("loss", loss if regression else loss / math.log(2), examples, round=4)
        validated = [output for output in logging_outputs if "ids" in output]
        if validated:
            positive = validated[0]["positive"]
            log_predictions(validated, metric_names(regression, positive), positive)
        elif not regression:
            correct = sum(int(output["ncorrect"]) for output in logging_outputs)
            metrics.log_scalar("accuracy", 100.0 * correct / examples, examples, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because predictions cannot be summed."""
        return False


def _positive_class(labels: list[str], wanted: str) -> int | None:
    if wanted and (len(labels) != 2 or wanted not in labels):
        raise ValueError(f"--positive-label {wanted} must be one of two labels, but the data have {', '.join(labels)}")
    return labels.index(wanted) if wanted else positive_class(labels)
