"""General text beside a domain's: a part of every epoch, and a validation set whose loss may end the training.

Reading the method, pass by: without --general-data the task never comes here, but for the losses that it logs first.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import utils
from fairseq.logging import metrics

from fairseq_maelm.data.blocks import shard_files, split_files
from fairseq_maelm.data.dataset import MaskedBlockDataset
from fairseq_maelm.fairseq_fixes.resuming import lasting
from fairseq_maelm.fairseq_fixes.stopping import stop_training
from fairseq_maelm.launch.progress import running_trainer
from fairseq_maelm.launch.save_folder import checkpoint_files
from fairseq_maelm.text.dictionary import check_shards

logger = logging.getLogger(__name__)

GENERAL = "general"  # the name of the validation set of general text
# The loss before the first update is stored in a fairseq meter: checkpoints save meters, and resumed runs restore them,
# but --finetune-from-model does not.
_METERS, _METER = lasting("general_at_start"), "loss"
_STEPS = "max_valid_steps"  # 0 for all batches


def start() -> float | None:
    """Return the loss before the first update, in bits per predicted token, or None if not measured yet."""
    meter = metrics.get_meter(_METERS, _METER)
    return None if meter is None else float(meter.avg)


def measure_start(trainer: Any, bound: float) -> None:
    """Measure and store the loss before the first update, like fairseq's validation; call it on all ranks."""
    loss = _measure(trainer, GENERAL)
    with metrics.aggregate(_METERS, new_root=True):
        metrics.log_scalar(_METER, loss)
        metrics.log_scalar(_STEPS, trainer.cfg.dataset.max_valid_steps or 0)
    logger.info("general loss at the start: %.3f bits per masked token, at most %.3f allowed", loss, loss + bound)


def log_start(trainer: Any) -> None:
    """Log the losses of a run that starts from a checkpoint before its first update; call it on all ranks."""
    dataset = trainer.cfg.dataset
    if trainer.get_num_updates() or dataset.disable_validation or not trainer.cfg.checkpoint.finetune_from_model:
        return
    for subset in dataset.valid_subset.split(","):
        if subset != GENERAL or start() is None:
            loss = _measure(trainer, subset)
            logger.info("%s loss before the first update: %.3f bits per masked token", subset, loss)


def _measure(trainer: Any, subset: str) -> float:
    batches = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with metrics.aggregate(new_root=True) as validation:
        for batch in batches:
            trainer.valid_step(batch)
    return float(validation.get_smoothed_value("loss"))


def check_part(trainer: Any) -> None:
    """Refuse to compare with a start that was measured on another part of the general text."""
    meter, steps = metrics.get_meter(_METERS, _STEPS), trainer.cfg.dataset.max_valid_steps or 0
    first = 0 if meter is None else int(meter.avg)
    if steps != first:
        was, now = (f"with --max-valid-steps {number}" if number else "on all batches" for number in (first, steps))
        raise ValueError(
            f"--general-loss-bound would compare a loss {now} with that before the first update, which was measured "
            f"{was}: resume with the same --max-valid-steps"
        )


def excess(loss: float, bound: float, trainer: Any) -> str | None:
    """Return a reason to end the run if ``loss`` > ``start()`` + ``bound`` (bits per predicted token), else None."""
    first = start()
    # NaN ends the run too.
    if first is None or loss <= first + bound:
        return None
    advice = "nor was an earlier one: lower --lr, raise --general-ratio or the bound, or validate more often"
    if checkpoint_files(Path(trainer.cfg.checkpoint.save_dir), ""):
        advice = "use the last checkpoint"
    return (
        f"the general loss is {loss:.3f} bits per masked token, above its bound of {first + bound:.3f} "
        f"({first:.3f} before the first update + {bound:g}). This state is not saved; {advice}"
    )


def blocks_to_mix(domain_tokens: int, general: np.ndarray, ratio: float) -> int:
    """Return the number of general blocks that makes general text a fraction ``ratio`` of an epoch's tokens.

    An epoch uses all ``domain_tokens``, and each block, of lengths ``general`` <int>[blocks], at most once.
    """
    number = round(ratio / (1.0 - ratio) * domain_tokens / float(general.mean()))
    if number > len(general):
        raise ValueError(
            f"--general-ratio {ratio} needs {number:,} blocks of general text in every epoch, but there are "
            f"{len(general):,}: give more general text, or a smaller ratio"
        )
    return number


class MixedBlockDataset(MaskedBlockDataset):
    """A training split: each epoch has all domain blocks and the next few general blocks.

    The choice depends on the seed and the epoch alone, so that a resumed run sees the data of an uninterrupted one.
    """

    domain_blocks: int
    general_blocks: Sequence[int]  # numbers of general blocks in the first epochs, after which they are repeated

    def mix(self, domain_blocks: int, domain_tokens: Sequence[int], ratio: float) -> "MixedBlockDataset":
        """Set what epochs are made of: all domain blocks, which come first, and a share ``ratio`` of general tokens.

        ``domain_tokens`` are the numbers of tokens in the first epochs, one for each shard that has been read.
        """
        general = self.blocks.sizes[domain_blocks:]
        self.domain_blocks = domain_blocks
        self.general_blocks = [blocks_to_mix(tokens, general, ratio) for tokens in domain_tokens]
        return self

    def ordered_indices(self) -> np.ndarray:
        """Return the blocks of the epoch, <int64>[n], in the order in which they are batched."""
        # Every epoch takes the next general blocks of a random order, so that all are taken equally often.
        order = np.random.default_rng([self.seed, 0]).permutation(len(self) - self.domain_blocks)
        cycles, epoch = divmod(self.epoch - 1, len(self.general_blocks))
        taken = cycles * sum(self.general_blocks) + sum(self.general_blocks[:epoch])
        numbers = taken + np.arange(self.general_blocks[epoch])
        general = np.sort(order[numbers % len(order)]) + self.domain_blocks
        return self._ordered(np.concatenate([np.arange(self.domain_blocks), general]))


class GeneralText:
    """The general text of a task: mixed into its training, measured by its validation set ``general``."""

    def __init__(self, task: Any) -> None:
        self._task, self.cfg = task, task.cfg
        if self.cfg.general_data is None and (self.cfg.general_ratio or self.cfg.general_loss_bound is not None):
            raise ValueError("--general-ratio and --general-loss-bound need --general-data")
        self._tokens: dict[tuple[str, ...], int] = {}  # paths of a shard -> number of tokens in its blocks

    def is_split(self, split: str) -> bool:
        """Return whether a split is the validation set of general text."""
        return split == GENERAL and self.cfg.general_data is not None

    def _folders(self) -> list[str]:
        folders: list[str] = utils.split_paths(self.cfg.general_data)
        check_shards([utils.split_paths(self.cfg.data)[0], *folders])
        return folders

    def validation_files(self) -> list[str]:
        """Return the files of the valid split; only the first shard has one."""
        return split_files(self._folders()[0], "valid", combine=False)

    def mixed(self, split: str, paths: list[str], epoch: int, combine: bool) -> MixedBlockDataset:
        """Open a training split with general text; ``paths`` are the files of the epoch's shard of the domain."""
        # Every epoch chooses blocks from all shards of the general text.
        general = [path for folder in self._folders() for path in split_files(folder, "train", combine)]
        mixed = self._task.dataset_of(split, [*paths, *general], MixedBlockDataset, training=True)
        domain_blocks = mixed.blocks.blocks_of_files(len(paths))
        self._tokens[tuple(paths)] = int(mixed.blocks.sizes[:domain_blocks].sum(dtype=np.int64))
        folders = utils.split_paths(self.cfg.data)
        earlier = [shard_files(folders, split, number, combine) for number in range(1, min(epoch, len(folders)) + 1)]
        mixed.mix(domain_blocks, [self._tokens_of(shard) for shard in earlier], self.cfg.general_ratio)
        counts = f"{mixed.domain_blocks:,}", f"{mixed.general_blocks[(epoch - 1) % len(mixed.general_blocks)]:,}"
        logger.info("an epoch takes %s blocks of the domain and %s of the general text", *counts)
        return mixed

    def _tokens_of(self, paths: list[str]) -> int:
        """Return the number of tokens in the blocks of a shard; a resumed run has not opened the earlier ones."""
        known = tuple(paths)
        if known not in self._tokens:
            self._tokens[known] = int(self._task.blocks_of(paths).sizes.sum(dtype=np.int64))
        return self._tokens[known]

    def begin(self) -> None:
        """Measure the losses of adaptation before the first update; called on all ranks when an epoch begins."""
        trainer, bound = running_trainer(), self.cfg.general_loss_bound
        if bound is not None and GENERAL not in self._task.datasets:
            raise ValueError(
                "--general-loss-bound needs the validation set 'general': give --valid-subset valid,general"
            )
        if bound is not None and start() is None:
            measure_start(trainer, bound)
        elif bound is not None:
            check_part(trainer)
        log_start(trainer)

    def check(self, validated: Any, loss: float) -> None:
        """Stop the training if the dataset that was validated is the general text and its loss is above the bound."""
        bound = self.cfg.general_loss_bound
        if bound is None or validated is not self._task.datasets.get(GENERAL):
            return
        reason = excess(loss, bound, running_trainer())
        if reason is not None:
            stop_training(reason)
