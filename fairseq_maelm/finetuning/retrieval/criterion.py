"""The contrastive loss of retrieval, and validation by searching the whole corpus."""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from torch import Tensor

from fairseq_maelm.finetuning.retrieval.loss import contrastive_loss, gather_rows


@dataclass
class RetrievalCriterionConfig(FairseqDataclass):
    """Options of the criterion."""

    temperature: float = field(
        default=0.05,
        metadata={
            "help": "temperature, by which similarities are divided: 0.01 to 0.1 for cosines, 1 for --similarity dot"
        },
    )


@register_criterion("maelm_retrieval", dataclass=RetrievalCriterionConfig)
class RetrievalCriterion(FairseqCriterion):
    """Contrast each query's document with those of the other queries, on all ranks, and with hard negatives.

    In training it logs ``loss`` in bits per query, ``accuracy``, the percentage of queries whose document scores
    highest, and ``negatives``, the mean number of negatives per query. The task logs the validation metrics.
    """

    def __init__(self, cfg: RetrievalCriterionConfig, task: Any) -> None:
        super().__init__(task)
        if not hasattr(task, "embed"):
            raise ValueError("--criterion maelm_retrieval needs --task maelm_retrieval")
        if not cfg.temperature > 0.0:
            raise ValueError(f"--temperature must be positive, not {cfg.temperature}")
        self.temperature = cfg.temperature

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of a batch of pairs, or embed a batch of a validation split.

        Returns:
            the loss in nats, summed over this rank's Q queries, or 0 in validation; Q, by which fairseq divides the
            gradient; and the sums to log.
        """
        counts = {name: sample[name] for name in ("ntokens", "nsentences")}
        queries = self.task.embed(model, sample["net_input"])
        # If ranks have different numbers of batches, fairseq adds dummy batches, possibly from the last validation.
        # They must not count, not even as negatives of the other ranks.
        ignored = bool(sample.get("ignored"))
        if "split" in sample and not ignored:
            self.task.collect(sample, queries)
            return queries.new_zeros(()), sample["nsentences"], {**counts, "texts": sample["nsentences"]}
        if ignored:
            documents, ids = queries[:0], sample["id"][:0]
        else:
            documents, ids = self.task.embed(model, sample["documents"]), sample["document_ids"]
        group = distributed_utils.get_data_parallel_group()
        documents, ids = gather_rows(documents, group), gather_rows(ids, group)
        if ignored:
            # The backward pass of this graph exchanges the gradients of the other ranks' documents.
            loss, correct, negatives = 0.0 * (queries.sum() + documents.sum()), ids.new_zeros(()), ids.new_zeros(())
        else:
            loss, correct, negatives = contrastive_loss(
                queries, documents, ids, sample["target"], sample["positives"], self.temperature
            )
        sums = {"loss": loss.detach(), "ncorrect": correct, "nnegatives": negatives}
        return loss, sample["nsentences"], {**counts, "sample_size": sample["nsentences"], **sums}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the training metrics of all batches and ranks, and log them."""

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in logging_outputs)

        queries = total("sample_size")
        metrics.log_scalar("loss", total("loss") / queries / math.log(2), queries, round=3)
        metrics.log_scalar("accuracy", 100.0 * total("ncorrect") / queries, queries, round=2)
        metrics.log_scalar("negatives", total("nnegatives") / queries, queries, round=1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: ranks exchange one small tensor of sums, but no embeddings."""
        return True
