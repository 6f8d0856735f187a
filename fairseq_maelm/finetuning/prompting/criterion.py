"""The loss of prompt-based fine-tuning over the label words."""

import math
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_maelm.finetuning.dataset_metrics import example_rows
from fairseq_maelm.finetuning.prompting.scoring import label_scores, predictions, prompt_loss


@dataclass
class PromptCriterionConfig(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints instead."""


@register_criterion("maelm_prompt", dataclass=PromptCriterionConfig)
class PromptCriterion(FairseqCriterion):
    """Cross-entropy over the label words, or a divergence for regression; see ``prompt_loss``.

    It logs ``loss`` in bits per example. In validation its outputs also contain the labels and predictions of examples,
    from which the task computes the prompt's metrics.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss in nats, summed over B examples; B, by which gradients are divided; and the values to log."""
        prompter = self.task.prompter
        logits, _ = model(**sample["net_input"])
        scores = label_scores(logits, prompter.pieces)
        loss = prompt_loss(scores, sample["target"], prompter.prompt.bounds)
        counts = {name: sample[name] for name in ("nsentences", "ntokens")}
        output: dict[str, Any] = {"loss": loss.detach(), "sample_size": sample["nsentences"], **counts}
        if not model.training:
            predicted = predictions(scores, prompter.prompt.bounds)
            output.update(example_rows(sample, sample["target"], predicted))
        return loss, sample["nsentences"], output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the losses of all batches and ranks, and log them."""
        examples = sum(output.get("sample_size", 0) for output in logging_outputs)
        loss = sum(float(output.get("loss", 0)) for output in logging_outputs)
        metrics.log_scalar("loss", loss / examples / math.log(2), examples, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because predictions cannot be summed."""
        return False
