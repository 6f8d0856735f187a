"""The loss of SQuAD, and in validation the best answer of each window."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_maelm.finetuning.squad.dataset import NO_TARGET
from fairseq_maelm.finetuning.squad.spans import window_rows

SPAN_HEAD = "span_head"


@dataclass
class SquadCriterionConfig(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints instead."""


@register_criterion("maelm_squad", dataclass=SquadCriterionConfig)
class SquadCriterion(FairseqCriterion):
    """The mean cross-entropy of an answer's first and last token, summed over windows.

    The softmax is over ``<s>``, which stands for no answer, and the tokens of the context. It logs ``loss`` in bits per
    window and ``span_accuracy``, the percentage of windows whose first and last token both score highest. The task,
    which has the texts, logs the metrics of answers.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of B windows.

        Returns:
            the loss in nats, summed over windows that have a target; their number, by which fairseq divides the
            gradient; and the values to log, in validation with the best answer <WINDOW_DTYPE>[B] of every window.
        """
        logits, _ = model(**sample["net_input"], classification_head_name=SPAN_HEAD)
        allowed = sample["context_mask"].clone()
        allowed[:, 0].fill_(True)
        scores, target = logits.float().masked_fill(~allowed[..., None], -torch.inf), sample["target"]
        # [2 B, S]: the first and the last token are separate examples.
        sides = scores.transpose(1, 2).flatten(0, 1)
        loss = 0.5 * F.cross_entropy(sides, target.flatten(), ignore_index=NO_TARGET, reduction="sum")
        sample_size = sample["located"]
        logging_output: dict[str, Any] = {
            "loss": loss.detach(),
            "sample_size": sample_size,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "ncorrect": (scores.argmax(dim=1) == target).all(dim=1).sum(),
        }
        if not model.training:
            logging_output["split"] = sample["split"]
            logging_output["windows"] = window_rows(logits, sample, self.task.cfg, kept=1)[:, 0]
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the metrics of all batches and ranks, and log them."""
        size, loss, correct = (
            sum(float(output.get(name, 0)) for output in logging_outputs)
            for name in ("sample_size", "loss", "ncorrect")
        )
        # No window of a batch may have a target.
        if size:
            metrics.log_scalar("loss", loss / size / math.log(2), size, round=3)
            metrics.log_scalar("span_accuracy", 100.0 * correct / size, size, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because in validation they contain the answers of windows."""
        return False
