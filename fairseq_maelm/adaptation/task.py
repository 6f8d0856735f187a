"""The task of domain adaptation: pretraining with general text mixed in, and with a bound on its loss."""

import logging
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.tasks import register_task

from fairseq_maelm.adaptation.general_loss_bound import (
    GENERAL,
    GeneralBlockDataset,
    GeneralLossBound,
    check_general_options,
)
from fairseq_maelm.adaptation.mixing import MixedBlockDataset
from fairseq_maelm.data.blocks import shard_files, split_files
from fairseq_maelm.fairseq_fixes.stopping import stop_training
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig
from fairseq_maelm.text.dictionary import check_shards

logger = logging.getLogger(__name__)

__all__ = ["AdaptationTask", "AdaptationTaskConfig"]

# The batch size of the validation before the first update.
_TOKENS_AT_START = 8192
# A meter that marks metrics of the set ``general``. fairseq does not log meters whose names begin with an underscore.
_GENERAL_METER = "_general"


@dataclass
class AdaptationTaskConfig(MaelmTaskConfig):
    """Options of pretraining, and options about general text."""

    general_data: Optional[str] = field(
        default=None,
        metadata={
            "help": "one or more folders of general text with the same vocabulary, separated by colons; the valid "
            "split of the first one is used as the validation set 'general' (--valid-subset valid,general)"
        },
    )
    general_ratio: float = field(
        default=0.0, metadata={"help": "share of each epoch's tokens that come from the general text's train split"}
    )
    general_loss_bound: Optional[float] = field(
        default=None,
        metadata={
            "help": "largest increase, in bits, of the loss on 'general' over its value before the first update; a "
            "larger one stops training without saving"
        },
    )


@register_task("maelm_adaptation", dataclass=AdaptationTaskConfig)
class AdaptationTask(MaelmTask):
    """Continued pretraining on a domain's text that limits forgetting of general text."""

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        super().__init__(cfg, dictionary)
        check_general_options(cfg)
        bound = cfg.general_loss_bound
        self.general_bound = None if bound is None else GeneralLossBound(bound)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **unused: Any) -> None:
        """Open a split: ``general`` and a share of the training split from the general text, others as usual."""
        if split == GENERAL and self.cfg.general_data is not None:
            paths = self._general_paths("valid", combine)[:1]
            self.datasets[split] = self.dataset_of(split, paths, GeneralBlockDataset)
        elif split.startswith("train") and self.cfg.general_ratio:
            paths = shard_files(utils.split_paths(self.cfg.data), split, epoch, combine)
            files = [*paths, *self._general_paths("train", combine)]
            dataset = self.dataset_of(split, files, MixedBlockDataset)
            dataset.mix(dataset.blocks.blocks_of_files(len(paths)), self.cfg.general_ratio)
            counts = f"{dataset.domain_blocks:,}", f"{dataset.general_blocks:,}"
            logger.info("an epoch takes %s blocks of the domain and %s of the general text", *counts)
            self.datasets[split] = dataset
        else:
            super().load_dataset(split, epoch, combine, **unused)

    def _general_paths(self, split: str, combine: bool) -> list[str]:
        """Return the files of all shards, since every epoch chooses its blocks from all of them."""
        folders = utils.split_paths(self.cfg.general_data)
        check_shards([utils.split_paths(self.cfg.data)[0], *folders])
        return [path for folder in folders for path in split_files(folder, split, combine)]

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Measure the general loss before the first update if it is bounded; called by fairseq on all ranks."""
        super().begin_epoch(epoch, model)
        if self.general_bound is None:
            return
        if GENERAL not in self.datasets:
            raise ValueError(
                "--general-loss-bound needs the validation set 'general': give --valid-subset valid,general"
            )
        if self.general_bound.start is None:
            self.general_bound.measure_start(model, self._general_samples())

    def _general_samples(self) -> Any:
        """Return the batches of this rank's part of the validation set ``general``."""
        dataset, rank, ranks = self.datasets[GENERAL], 0, 1
        if torch.distributed.is_initialized():
            rank = distributed_utils.get_data_parallel_rank()
            ranks = distributed_utils.get_data_parallel_world_size()
        iterator = self.get_batch_iterator(
            dataset=dataset,
            max_tokens=max(_TOKENS_AT_START, int(dataset.sizes.max())),
            max_positions=self.max_positions(),
            num_shards=ranks,
            shard_id=rank,
        )
        return iterator.next_epoch_itr(shuffle=False, set_dataset_epoch=False)

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any) -> Any:
        """Validate on a batch, and mark the metrics of general text; called by fairseq."""
        loss, sample_size, logged = super().valid_step(sample, model, criterion)
        # All batches have the mark, because ranks sum their metrics by name.
        logged[_GENERAL_METER] = int(sample.get(GENERAL, False))
        return loss, sample_size, logged

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Log the metrics of all batches and ranks, with the mark of general text; called by fairseq."""
        super().reduce_metrics(logging_outputs, criterion)
        if any(logged.get(_GENERAL_METER) for logged in logging_outputs):
            metrics.log_scalar(_GENERAL_METER, 1)

    def post_validate(self, model: Any, stats: Any, agg: Any) -> None:
        """Stop if the general loss is above its bound; called by fairseq after each validation set."""
        if self.general_bound is not None and _GENERAL_METER in agg:
            excess = self.general_bound.excess(float(stats["loss"]))
            if excess is not None:
                stop_training(excess)
