"""The loss of pretraining: cross-entropy of the masked tokens (paper, equation 1)."""

import math
from dataclasses import dataclass
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor


@dataclass
class MaelmCriterionConfig(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints."""


@register_criterion("maelm", dataclass=MaelmCriterionConfig)
class MaelmCriterion(FairseqCriterion):
    """Cross-entropy summed over the predicted tokens.

    It logs ``loss`` (bits per predicted token), its perplexity ``ppl`` and, in percent, ``accuracy`` on the predicted
    tokens, ``masked`` (the share of tokens to predict) and ``padding`` (the share of padding in encoder and decoder).
    fairseq's ``wps`` counts all original tokens, including masked ones.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of one batch.

        Returns:
            the loss in nats, summed over the M predicted tokens; the sample size M, by which fairseq divides the
            gradient; and the metrics to log, all of them sums.
        """
        net_input, target = sample["net_input"], sample["target"]
        # The model's forward computes the loss because wrappers for several GPUs intercept only forward.
        loss, extra = model(**net_input, target=target)
        sample_size = target.numel()
        layout = net_input["layout"]
        slots = net_input["src_tokens"].numel() + len(net_input["src_tokens"]) * layout["padded_length"]
        return (
            loss,
            sample_size,
            {
                "loss": loss.detach(),
                "sample_size": sample_size,
                "ntokens": sample["ntokens"],
                "nsentences": sample["nsentences"],
                "ncorrect": extra["correct"],
                "slots": slots,
                "filled_slots": layout["visible_tokens"] + sample["ntokens"],
            },
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the metrics of all batches and ranks, and log them."""

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in logging_outputs)

        sample_size, tokens, slots = total("sample_size"), total("ntokens"), total("slots")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["loss"].avg))
        metrics.log_scalar("accuracy", 100.0 * total("ncorrect") / sample_size, sample_size, round=2)
        metrics.log_scalar("masked", 100.0 * sample_size / tokens, tokens, round=2)
        metrics.log_scalar("padding", 100.0 * (1.0 - total("filled_slots") / slots), slots, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True, so that ranks exchange one small tensor of sums instead of objects."""
        return True
