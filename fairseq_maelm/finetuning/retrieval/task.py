"""The task of retrieval: one encoder embeds queries and documents, and each query finds the nearest documents."""

import logging
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_maelm.data.token_files import check_tokens, read_arrays
from fairseq_maelm.finetuning.retrieval import criterion as retrieval_criterion
from fairseq_maelm.finetuning.retrieval.datasets import RetrievalPairDataset, RetrievalTextDataset, Target, Texts
from fairseq_maelm.finetuning.retrieval.measures import load_library
from fairseq_maelm.finetuning.retrieval.pooling import POOLINGS, SIMILARITIES, embed_states
from fairseq_maelm.finetuning.retrieval.prepared import (
    NEGATIVES,
    group_pairs,
    group_relevant,
    identifiers_file,
    judgments_file,
    read_identifiers,
)
from fairseq_maelm.finetuning.retrieval.validation import METRICS, validation_metrics
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.text.dictionary import load_dictionary

logger = logging.getLogger(__name__)

__all__ = ["RetrievalTask", "RetrievalTaskConfig", "retrieval_criterion"]

_TEXTS = "_texts"


@dataclass
class RetrievalTaskConfig(FairseqDataclass):
    """Options of the task; ``maelm embed`` takes pooling, similarity and length from the checkpoint."""

    data: str = field(default=MISSING, metadata={"help": "folder written by `maelm prepare retrieval`"})
    pooling: ChoiceEnum(list(POOLINGS)) = field(  # type: ignore[valid-type]
        default="mean",
        metadata={"help": "embedding of a text: mean of its tokens' states, or state of the first token, <s>"},
    )
    similarity: ChoiceEnum(list(SIMILARITIES)) = field(  # type: ignore[valid-type]
        default="cosine",
        metadata={"help": "similarity of two embeddings: cosine (embeddings are scaled to length 1), or dot product"},
    )
    tokens_per_sample: int = field(
        default=256,
        metadata={
            "help": "maximum number of tokens in a query or document, <s> and </s> included; longer ones are truncated"
        },
    )
    hard_negatives: int = field(
        default=0, metadata={"help": "number of hard negatives to draw from the folder for each query in each epoch"}
    )
    seed: int = II("common.seed")


@register_task("maelm_retrieval", dataclass=RetrievalTaskConfig)
class RetrievalTask(EncoderTask):
    """Train one encoder to embed queries and documents by a contrastive loss.

    Validation embeds the queries of the split and the whole corpus, searches it exactly, and logs ``ndcg10``,
    ``recall100`` and ``mrr10`` in percent. It also logs ``loss`` in bits and ``accuracy`` in percent of the split's
    pairs, in groups of a fixed size. Embeddings stay on the rank that computed them until the end.
    """

    name = "maelm_retrieval"
    # Any model that returns states of tokens can embed texts.
    only_own_models = False

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        super().__init__(cfg, dictionary, cfg.tokens_per_sample)
        for name, least in (("tokens_per_sample", 3), ("hard_negatives", 0)):
            if getattr(cfg, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(cfg, name)}")
        self._texts: dict[str, Texts] = {}
        self._forget()

    def _forget(self) -> None:
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._split: str | None = None
        self._device = torch.device("cpu")
        self._metrics: dict[str, float] | None = None

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "RetrievalTask":
        """Load the dictionary and build the task; called by fairseq."""
        return cls(cfg, load_dictionary(cfg.data))

    def embed(self, model: Any, net_input: dict[str, Tensor]) -> Tensor:
        """Embed a batch, ``src_tokens`` <int64>[B, S], into <float32>[B, D] by the model's forward, as DDP requires."""
        states, _ = model(**net_input, features_only=True)
        padding = net_input["src_tokens"].eq(self.dictionary.pad())
        return embed_states(states, padding, str(self.cfg.pooling), str(self.cfg.similarity))

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        """Open a split: its pairs for training, otherwise its queries and the whole corpus."""
        folder = Path(self.cfg.data)
        path = judgments_file(folder, split)
        if not path.exists():
            known = ", ".join(sorted(each.name.split(".")[0] for each in folder.glob("*.judgments.npy"))) or "none"
            raise FileNotFoundError(
                f"there is no split {split!r} in {folder} (it has: {known}): give a folder of `maelm prepare retrieval`"
                + (", perhaps with --valid-fraction" if split == "valid" else "")
            )
        judgments = read_arrays(path)
        relevant = group_relevant(judgments)
        queries, documents = self._open("queries"), self._open("documents")
        if split == "train":
            self.datasets[split] = RetrievalPairDataset(
                queries, documents, relevant, self._negatives(folder), self.cfg.hard_negatives, self.cfg.seed
            )
        else:
            load_library()  # otherwise a missing library would show after the first epoch
            names, document_ids = (
                read_identifiers(identifiers_file(folder, each)) for each in ("queries", "documents")
            )
            graded: dict[str, dict[str, int]] = {}
            for query, document, score in judgments.tolist():
                graded.setdefault(names[query], {})[document_ids[document]] = score
            target = Target(list(relevant.values()), graded, [names[query] for query in relevant], document_ids)
            self.datasets[split] = RetrievalTextDataset(split, queries, documents, np.array(list(relevant)), target)
        logger.info("%s: %s items", split, f"{len(self.datasets[split]):,}")

    def _open(self, name: str) -> Texts:
        if name not in self._texts:
            prefix = os.path.join(self.cfg.data, name)
            check_tokens(prefix, len(self.dictionary) - 1)
            texts = Texts(prefix, self.dictionary, self.cfg.tokens_per_sample)
            share, limit = 100 * texts.cut / len(texts), self.cfg.tokens_per_sample
            logger.info("%s: %s texts, %.1f %% of them cut to %d tokens", name, f"{len(texts):,}", share, limit)
            self._texts[name] = texts
        return self._texts[name]

    def _negatives(self, folder: Path) -> dict[int, np.ndarray]:
        if not self.cfg.hard_negatives:
            return {}
        if not (folder / NEGATIVES).exists():
            raise FileNotFoundError(
                f"--hard-negatives {self.cfg.hard_negatives} needs {folder / NEGATIVES}: prepare the folder by `maelm "
                "prepare retrieval --hard-negatives FILE`"
            )
        return group_pairs(read_arrays(folder / NEGATIVES))

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Any:
        """Train on a batch, and tell the criterion if its gradient is ignored."""
        sample = {**sample, "ignored": ignore_grad}
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Forget an earlier validation; called by fairseq."""
        self._forget()

    def collect(self, sample: dict[str, Any], embeddings: Tensor) -> None:
        """Keep the embeddings <float32>[B, D] of a validation batch."""
        if self._split != sample["split"]:
            self._forget()
            self._split = sample["split"]
        self._device = embeddings.device
        self._batches.append((sample["id"].cpu(), embeddings.float().cpu()))

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Log the training metrics, or those of a validation split once all its texts are embedded."""
        if not any("texts" in output for output in logging_outputs):
            super().reduce_metrics(logging_outputs, criterion)
            return
        metrics.log_scalar_sum(_TEXTS, sum(output.get("texts", 0) for output in logging_outputs))
        for name in METRICS:
            metrics.log_derived(name, self._metric(name, criterion.temperature))

    def _metric(self, name: str, temperature: float) -> Any:
        def value(meters: Any) -> float:
            dataset: Any = self.datasets[self._split]
            # This sum, which is equal on all ranks, tells them that the last batch is done.
            if int(meters[_TEXTS].sum) != len(dataset):
                return math.nan
            if self._metrics is None:
                group = distributed_utils.get_data_parallel_group()
                self._metrics = validation_metrics(self._batches, dataset.target, temperature, self._device, group)
                self._batches = []
            return self._metrics[name]

        return value
