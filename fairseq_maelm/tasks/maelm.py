"""The pretraining task: blocks of text, dynamically masked."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.tasks import register_task

from fairseq_maelm.architecture.checks import check_view, warn_of_a_deep_decoder
from fairseq_maelm.criterions import maelm as maelm_criterion
from fairseq_maelm.data.blocks import TokenBlocks, shard_files, split_files
from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.masking import MaskingScheme
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.data.schedule import Schedule
from fairseq_maelm.fairseq_fixes.private import ScheduledBatches
from fairseq_maelm.launch.progress import running_trainer
from fairseq_maelm.modules.attention.backends import BACKENDS_OF_A_MACHINE
from fairseq_maelm.tasks.config import MaelmTaskConfig
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.tasks.general_text import GeneralText
from fairseq_maelm.text.dictionary import (
    MASK,
    WordRule,
    check_shards,
    load_dictionary,
    log_frequencies,
    real_tokens,
    special_tokens,
    word_rule,
)

logger = logging.getLogger(__name__)

__all__ = ["MaelmTask", "MaelmTaskConfig", "maelm_criterion"]

# Validation masks do not depend on options, so that losses can be compared between epochs and runs.
_VALIDATION_SEED = 0
_VALIDATION_EPOCH = 1

_Blocks = TypeVar("_Blocks", bound=MaskedBlockDataset)


@register_task("maelm", dataclass=MaelmTaskConfig)
class MaelmTask(EncoderTask):
    """Prediction of masked tokens from the visible ones.

    Raises:
        ValueError: an option has an impossible value.
    """

    name = "maelm"
    predicts_masked_tokens = True

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        super().__init__(cfg, dictionary, cfg.tokens_per_sample)
        self.mask_index = dictionary.index(MASK)
        words = WordRule(None)
        if cfg.mask_whole_words:
            words = word_rule(dictionary, Path(utils.split_paths(cfg.data)[0]))
        self.scheme = MaskingScheme(
            mask_prob=cfg.mask_prob,
            real_tokens=real_tokens(dictionary),
            leave_unmasked_prob=cfg.leave_unmasked_prob,
            random_token_prob=cfg.random_token_prob,
            word_starts=words.starts,
            word_kinds=words.kinds,
            protected=special_tokens(dictionary) if cfg.protect_special_tokens else None,
        )
        rate = cfg.valid_mask_prob or cfg.mask_prob_end or cfg.mask_prob
        # All predicted tokens are hidden, as in MAE-LM: a loss on tokens that BERT's masking shows would be lower.
        self.validation_scheme = replace(self.scheme, mask_prob=rate, leave_unmasked_prob=0.0, random_token_prob=0.0)
        self.general = GeneralText(self)
        self.encoder_view = EncoderView(str(cfg.masked_input), cfg.encoder_mask_fraction, str(cfg.encoder_positions))
        self.predicts_all = False  # set by build_model, which fairseq calls before it loads any data
        # The dataset last requested by fairseq: it does not tell ``post_validate`` which dataset it validated.
        self._read: Any = None

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "MaelmTask":
        """Load the dictionary and build the task; called by fairseq."""
        folders = utils.split_paths(cfg.data)
        dictionary = load_dictionary(folders[0])
        check_shards(folders)
        logger.info("dictionary: %s symbols", f"{len(dictionary):,}")
        return cls(cfg, dictionary)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, and check that it can predict tokens that the encoder does not see."""
        if from_checkpoint and str(getattr(cfg, "attention", "auto")) in BACKENDS_OF_A_MACHINE:
            # The checkpoint may come from another machine; all backends compute the same.
            cfg.attention = "auto"
        model = super().build_model(cfg, from_checkpoint)
        decoder = getattr(model, "decoder", None)
        check_view(decoder, self.encoder_view)
        if decoder is not None and not from_checkpoint:
            warn_of_a_deep_decoder(model.config)
        self.predicts_all = decoder is not None and decoder.autoregressive
        if self.cfg.initial_output_bias == "frequencies" and not from_checkpoint:
            model.lm_head.bias.data.copy_(torch.from_numpy(self._log_frequencies()))
        return model

    def _log_frequencies(self) -> np.ndarray:
        paths = split_files(utils.split_paths(self.cfg.data)[0], self.cfg.train_subset, combine=False)
        # The files have no <s>, which is put before each block.
        blocks = TokenBlocks(paths, "none", self.cfg.tokens_per_sample, self.dictionary.bos())
        blocks.check_tokens(self.mask_index)
        return log_frequencies(blocks.streams[0], len(blocks), self.dictionary)

    def open_split(self, split: str, training: bool, epoch: int, combine: bool) -> MaskedBlockDataset:
        """Open a split: the epoch's shard for training, otherwise that of the first folder.

        General text from --general-data is added to the training split, and forms the validation split ``general``.
        """
        if self.general.is_split(split):
            return self.dataset_of(split, self.general.validation_files(), MaskedBlockDataset, training=False)
        folders = utils.split_paths(self.cfg.data)
        paths = shard_files(folders, split, epoch, combine) if training else split_files(folders[0], split, combine)
        if training and self.cfg.general_ratio:
            return self.general.mixed(split, paths, epoch, combine)
        return self.dataset_of(split, paths, MaskedBlockDataset, training)

    def blocks_of(self, paths: list[str]) -> TokenBlocks:
        """Cut the text of files, given without suffixes, into blocks."""
        mode = str(self.cfg.sample_break_mode)
        return TokenBlocks(paths, mode, self.cfg.tokens_per_sample, self.dictionary.bos())

    def dataset_of(self, split: str, paths: list[str], kind: type[_Blocks], training: bool) -> _Blocks:
        """Make a split's dataset from its file paths without suffixes; in training, each epoch has new masks.

        Raise a ValueError if the files contain tokens that are not in the dictionary.
        """
        blocks = self.blocks_of(paths)
        blocks.check_tokens(self.mask_index)
        logger.info("%s: %s blocks of %s tokens", split, f"{len(blocks):,}", f"{blocks.sizes.sum():,}")
        return kind(
            blocks,
            self.scheme if training else self.validation_scheme,
            Symbols(self.dictionary.pad(), self.mask_index),
            self.encoder_view,
            self.cfg.seed if training else _VALIDATION_SEED,
            None if training else _VALIDATION_EPOCH,
            self.predicts_all,
        )

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an epoch, as in fairseq; masking rate and length may depend on the update."""
        self._read = dataset
        batches, trainer = super().get_batch_iterator(dataset, *args, **kwargs), running_trainer()
        rate, end, short = self.cfg.mask_prob, self.cfg.mask_prob_end, self.cfg.half_length_until
        if (end is None and not short) or trainer is None or dataset.fixed_epoch is not None:
            return batches
        return ScheduledBatches.follow(batches, Schedule(rate, end or rate, short), trainer)

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Measure the losses of adaptation before the first update; called on all ranks."""
        super().begin_epoch(epoch, model)
        self.general.begin()

    def post_validate(self, model: Any, stats: Any, agg: Any) -> None:
        """Stop if the general loss is above its bound; called by fairseq after each validation set."""
        self.general.check(self._read, float(stats["loss"]))
