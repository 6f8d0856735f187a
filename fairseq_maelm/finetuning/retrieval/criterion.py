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
        metadata={"help": "similarities are divided by it: 0.01 to 0.1 for cosines, 1 for --similarity dot"},
    )


@register_criterion("maelm_retrieval", dataclass=RetrievalCriterionConfig)
class RetrievalCriterion(FairseqCriterion):
    """Every query must tell its document from those of the other queries, of all ranks, and from hard negatives.

    Logged in training: ``loss`` in bits a query, ``accuracy``, the percentage of queries whose document scores highest,
    and ``negatives``, the mean number of documents that it was compared with. The metrics of validation are the task's.
    """

    def __init__(self, task: Any, temperature: float) -> None:
        super().__init__(task)
        if not hasattr(task, "embed"):
            raise ValueError("--criterion maelm_retrieval needs --task maelm_retrieval")
        if not temperature > 0.0:
            raise ValueError(f"--temperature must be positive and is {temperature}")
        self.temperature = temperature

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> "RetrievalCriterion":
        """Build the criterion; called by fairseq."""
        return cls(task, cfg.temperature)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of one batch of pairs, or embed one batch of a validation split.

        Returns:
            the loss in nats, summed over this rank's Q queries; Q, by which fairseq divides the gradient; and the
            metrics to log, all of them sums. Of a validation split the loss is 0.
        """
        counts = {name: sample[name] for name in ("ntokens", "nsentences")}
        queries = self.task.embed(model, sample["net_input"])
        # Where ranks have different numbers of batches, fairseq fills up with a batch that must not count, not even as
        # negatives of the other ranks. It may be one of the last validation.
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
            # The documents of the other ranks belong to this graph: the backward pass exchanges their gradients.
            loss, correct, negatives = 0.0 * (queries.sum() + documents.sum()), ids.new_zeros(()), ids.new_zeros(())
        else:
            loss, correct, negatives = contrastive_loss(
                queries, documents, ids, sample["target"], sample["positives"], self.temperature
            )
        sums = {"loss": loss.detach(), "ncorrect": correct, "nnegatives": negatives}
        return loss, sample["nsentences"], {**counts, "sample_size": sample["nsentences"], **sums}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Add the metrics of all batches and ranks of training and log them."""

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in logging_outputs)

        queries = total("sample_size")
        metrics.log_scalar("loss", total("loss") / queries / math.log(2), queries, round=3)
        metrics.log_scalar("accuracy", 100.0 * total("ncorrect") / queries, queries, round=2)
        metrics.log_scalar("negatives", total("nnegatives") / queries, queries, round=1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: ranks exchange one small tensor of sums and no objects; embeddings stay where they are."""
        return True
