"""The base class of fine-tuning criterions: logging outputs, the loss in bits, and training accuracy."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq.criterions import FairseqCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor


@dataclass
class NoOptions(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints."""


class FineTuningCriterion(FairseqCriterion):
    """Base class of losses summed over examples, words or windows; fairseq divides gradients by the number of terms.

    It logs the mean ``loss`` in bits and, if outputs contain ``ncorrect``, the percentage of correct predictions.
    """

    accuracy: ClassVar[str] = "accuracy"

    def result(
        self, sample: dict[str, Any], loss: Tensor, size: int, correct: Tensor | None = None, **more: Any
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the output of ``forward`` for a batch: the loss, its number of terms, and the values to log.

        Args:
            sample: the batch.
            loss: the loss in nats, summed over its terms.
            size: number of terms.
            correct: number of correct predictions; None to log no percentage.
            more: further values to log; ``squares=True`` marks a sum of squared errors, which is not converted to bits.
        """
        output = {"loss": loss.detach(), "sample_size": size, "ntokens": sample["ntokens"], **more}
        output["nsentences"] = sample["nsentences"]
        if correct is not None:
            output["ncorrect"] = correct
        return loss, size, output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the metrics of all batches and ranks, and log them."""
        size, loss, correct = (
            sum(float(output.get(name, 0)) for output in logging_outputs)
            for name in ("sample_size", "loss", "ncorrect")
        )
        # Possibly no window of the batch has a target.
        if not size:
            return
        squares = any(output.get("squares") for output in logging_outputs)
        metrics.log_scalar("loss", loss / size / (1.0 if squares else math.log(2)), size, round=4)
        if any("ncorrect" in output for output in logging_outputs):
            metrics.log_scalar(cls.accuracy, 100.0 * correct / size, size, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because the logging outputs of validation contain predictions."""
        return False
