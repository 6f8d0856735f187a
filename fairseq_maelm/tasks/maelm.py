"""The pretraining task: blocks of text, dynamically masked."""

import logging
from dataclasses import dataclass, field
from typing import Any, List, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from fairseq_maelm.adaptation.general import (
    GENERAL,
    GeneralLossBound,
    check_general_options,
    general_folders,
    own_share,
)
from fairseq_maelm.adaptation.mixing import MixedBlockDataset
from fairseq_maelm.criterions import maelm as maelm_criterion
from fairseq_maelm.data.blocks import BREAK_MODES, TokenBlocks, shard_files, split_files
from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.encoder_view import ENCODER_POSITIONS, MASKED_INPUTS, EncoderView
from fairseq_maelm.data.masking import MAX_LENGTH, MaskingScheme
from fairseq_maelm.models.checks import warn_of_a_deep_decoder
from fairseq_maelm.modules.attention.choice import PATHS_OF_A_MACHINE
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.text.dictionary import (
    MASK,
    check_shards,
    load_dictionary,
    log_frequencies,
    real_tokens,
    special_tokens,
    word_starts,
)

logger = logging.getLogger(__name__)

__all__ = ["MaelmTask", "MaelmTaskConfig", "maelm_criterion"]

# Validation masks depend on no option, so that losses can be compared over epochs and over runs.
_VALIDATION_SEED = 0
_VALIDATION_EPOCH = 1
# A batch of the validation before the first update.
_TOKENS_AT_START = 8192


@dataclass
class MaelmTaskConfig(FairseqDataclass):
    """Options of the task."""

    data: str = field(
        default=MISSING,
        metadata={"help": "folder of `maelm prepare`, or several with a colon between them: one is read in each epoch"},
    )
    sample_break_mode: ChoiceEnum(list(BREAK_MODES)) = field(  # type: ignore[valid-type]
        default="complete_doc",
        metadata={
            "help": "how text is cut: 'none' every --tokens-per-sample tokens, 'complete' whole lines, 'complete_doc' "
            "whole lines of one document, 'eos' line by line"
        },
    )
    tokens_per_sample: int = field(default=512, metadata={"help": "longest sequence, <s> included"})
    masked_input: ChoiceEnum(list(MASKED_INPUTS)) = field(  # type: ignore[valid-type]
        default="dropped",
        metadata={
            "help": "what the encoder sees at masked positions: nothing ('dropped', MAE-LM), <mask> ('kept', MLM), "
            "<mask> but the decoder's input there is reset to the mask embedding ('reset'), random real tokens with "
            "the same reset ('random') or without ('random_kept')"
        },
    )
    encoder_mask_fraction: float = field(
        default=0.0,
        metadata={"help": "with --masked-input dropped: probability that a mask stays in the encoder's input (delta)"},
    )
    encoder_positions: ChoiceEnum(list(ENCODER_POSITIONS)) = field(  # type: ignore[valid-type]
        default="original",
        metadata={"help": "positions of the tokens that the encoder sees: the original ones, or consecutive ones"},
    )
    mask_prob: float = field(default=0.15, metadata={"help": "fraction of tokens to predict"})
    leave_unmasked_prob: float = field(default=0.0, metadata={"help": "fraction of those left in place (BERT: 0.1)"})
    random_token_prob: float = field(
        default=0.0, metadata={"help": "fraction of those replaced by random real tokens (BERT: 0.1)"}
    )
    mask_whole_words: bool = field(default=False, metadata={"help": "choose whole words instead of single tokens"})
    protect_special_tokens: bool = field(default=False, metadata={"help": "never choose <s> and </s>"})
    initial_output_bias: ChoiceEnum(["zeros", "frequencies"]) = field(  # type: ignore[valid-type]
        default="zeros",
        metadata={
            "help": "start of the prediction head's bias: zeros, or each symbol's log frequency in the training text, "
            "which spares short runs the updates that learn it"
        },
    )
    general_data: Optional[str] = field(
        default=None,
        metadata={
            "help": "folder of general text with the same vocabulary, or several with a colon between them; its valid "
            "split becomes the validation set 'general' (--valid-subset valid,general)"
        },
    )
    general_ratio: float = field(
        default=0.0, metadata={"help": "share of each epoch's tokens that come from the general text's train split"}
    )
    general_loss_bound: Optional[float] = field(
        default=None,
        metadata={
            "help": "stop, without saving, when the loss of 'general' is more than so many bits above its value before "
            "the first update"
        },
    )
    seed: int = II("common.seed")


def check_config(cfg: Any) -> None:
    """Refuse options that cannot make batches.

    Raises:
        ValueError: says which option is wrong and what is possible.
    """
    if not 2 <= cfg.tokens_per_sample <= MAX_LENGTH:
        raise ValueError(f"--tokens-per-sample must lie between 2 and {MAX_LENGTH} and is {cfg.tokens_per_sample}")
    check_general_options(cfg)


@register_task("maelm", dataclass=MaelmTaskConfig)
class MaelmTask(EncoderTask):
    """Predict masked tokens from the visible ones.

    Args:
        cfg: ``MaelmTaskConfig``.
        dictionary: fairseq's, with ``<mask>``.
    """

    name = "maelm"
    # Asked for by the model: this task needs decoder and prediction head.
    predicts_masked_tokens = True

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        super().__init__(cfg, dictionary, cfg.tokens_per_sample)
        check_config(cfg)
        self.mask_index = dictionary.index(MASK)
        self.scheme = MaskingScheme(
            mask_prob=cfg.mask_prob,
            real_tokens=real_tokens(dictionary),
            leave_unmasked_prob=cfg.leave_unmasked_prob,
            random_token_prob=cfg.random_token_prob,
            word_starts=word_starts(dictionary) if cfg.mask_whole_words else None,
            protected=special_tokens(dictionary) if cfg.protect_special_tokens else None,
        )
        self.encoder_view = EncoderView(str(cfg.masked_input), cfg.encoder_mask_fraction, str(cfg.encoder_positions))
        # Known when the model is built, which fairseq does before it opens any data.
        self.predicts_all = False
        bound = cfg.general_loss_bound
        self.general_bound = None if bound is None else GeneralLossBound(bound)
        self._read_last: Any = None

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "MaelmTask":
        """Load the dictionary and build the task; called by fairseq."""
        folders = utils.split_paths(cfg.data)
        dictionary = load_dictionary(folders[0])
        check_shards(folders)
        logger.info("dictionary: %s symbols", f"{len(dictionary):,}")
        return cls(cfg, dictionary)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and check that it fits what the encoder will see."""
        if from_checkpoint and str(getattr(cfg, "attention", "auto")) in PATHS_OF_A_MACHINE:
            # The checkpoint may come from another machine; all paths mean the same.
            cfg.attention = "auto"
        model = super().build_model(cfg, from_checkpoint)
        decoder = getattr(model, "decoder", None)
        if decoder is None and self.encoder_view.hides_all_masks:
            raise ValueError(
                f"without a decoder nothing can predict tokens whose states do not leave the encoder (--masked-input "
                f"{self.encoder_view.masked_input}): use --masked-input kept with --decoder-layers 0"
            )
        if decoder is not None and not from_checkpoint:
            warn_of_a_deep_decoder(model.config)
        self.predicts_all = decoder is not None and decoder.autoregressive
        if self.cfg.initial_output_bias == "frequencies" and not from_checkpoint:
            model.lm_head.bias.data.copy_(torch.from_numpy(self._log_frequencies()))
        return model

    def _log_frequencies(self) -> np.ndarray:
        paths = split_files(utils.split_paths(self.cfg.data)[0], "train", combine=False)
        # <s> is in none of the files: one stands before each block.
        blocks = TokenBlocks(paths, "none", self.cfg.tokens_per_sample, self.dictionary.bos())
        return log_frequencies(blocks.streams[0], len(blocks), self.dictionary)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **unused: Any) -> None:
        """Open a split: for training the shard of the epoch, otherwise the first folder's."""
        training = split.startswith("train")
        paths = self._paths(split, epoch, combine)
        domain_files = len(paths)
        if training and self.cfg.general_ratio:
            paths = [*paths, *self._general_paths("train", combine)]
        blocks = TokenBlocks(
            paths,
            str(self.cfg.sample_break_mode),
            self.cfg.tokens_per_sample,
            self.dictionary.bos(),
        )
        if blocks.largest_token() >= self.mask_index:
            raise ValueError(
                f"{paths[0]}.bin holds token {blocks.largest_token()}, but dict.txt has only {self.mask_index} "
                "symbols: the text was binarised with another dictionary"
            )
        logger.info("%s: %s blocks of %s tokens", split, f"{len(blocks):,}", f"{blocks.sizes.sum():,}")
        mixed = domain_files < len(paths)
        dataset = (MixedBlockDataset if mixed else MaskedBlockDataset)(
            blocks,
            self.scheme,
            Symbols(self.dictionary.pad(), self.mask_index),
            self.encoder_view,
            self.cfg.seed if training else _VALIDATION_SEED,
            None if training else _VALIDATION_EPOCH,
            self.predicts_all,
        )
        if isinstance(dataset, MixedBlockDataset):
            dataset.mix(blocks.blocks_of_files(domain_files), self.cfg.general_ratio)
            logger.info(
                "an epoch takes %s blocks of the domain and %s of the general text",
                f"{dataset.domain_blocks:,}",
                f"{dataset.general_blocks:,}",
            )
        self.datasets[split] = dataset

    def _paths(self, split: str, epoch: int, combine: bool) -> List[str]:
        """A split's files without suffix: for training the shard of the epoch, otherwise the first folder's."""
        if split == GENERAL and self.cfg.general_data is not None:
            return self._general_paths("valid", combine)[:1]
        folders = utils.split_paths(self.cfg.data)
        return shard_files(folders, split, epoch, combine)

    def _general_paths(self, split: str, combine: bool) -> List[str]:
        """The files of all shards: an epoch chooses its blocks from all of them."""
        folders = general_folders(self.cfg, utils.split_paths(self.cfg.data)[0])
        return [path for folder in folders for path in split_files(folder, split, combine)]

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Before the first update, measure the general loss if it is bounded; called by fairseq on all ranks."""
        super().begin_epoch(epoch, model)
        if self.general_bound is None:
            return
        if GENERAL not in self.datasets:
            raise ValueError("--general-loss-bound needs the validation set general: --valid-subset valid,general")
        self.general_bound.watch(model, self._general_samples)

    def _general_samples(self) -> Any:
        """This rank's part of the validation set general."""
        dataset = self.datasets[GENERAL]
        rank, ranks = own_share()
        iterator = self.get_batch_iterator(
            dataset=dataset,
            max_tokens=max(_TOKENS_AT_START, int(dataset.sizes.max())),
            max_positions=self.max_positions(),
            num_shards=ranks,
            shard_id=rank,
        )
        return iterator.next_epoch_itr(shuffle=False, set_dataset_epoch=False)

    def post_validate(self, model: Any, stats: Any, agg: Any) -> None:
        """Look at the general loss after its validation; called by fairseq after that of each validation set."""
        if self.general_bound is not None and self._read_last is self.datasets.get(GENERAL):
            self.general_bound.check(float(stats["loss"]))

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Make the batches of an epoch; arguments and result are fairseq's."""
        # fairseq asks for a validation set's batches before it validates, and does not name the set afterwards.
        self._read_last = kwargs["dataset"] if "dataset" in kwargs else args[0]
        iterator = super().get_batch_iterator(*args, **kwargs)
        # Every epoch has an iterator of its own. Workers that outlive their epoch would add up over hundreds of them.
        iterator.persistent_workers = False
        return iterator

    @property
    def target_dictionary(self) -> Dictionary:
        """Predictions are made over the source's vocabulary."""
        return self.dictionary
