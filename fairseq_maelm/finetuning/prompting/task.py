"""The fairseq task and criterion of prompt-based fine-tuning (paper, appendix E)."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from omegaconf import II, MISSING
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.architecture.checks import check_view
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.dataset import Symbols
from fairseq_maelm.data.masking_variants import (
    ENCODER_POSITIONS,
    MASKED_INPUTS,
    EncoderView,
    encoder_input_of_masks,
)
from fairseq_maelm.fairseq_fixes.private import remember
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN, Prompter, find_prompt
from fairseq_maelm.finetuning.tables import read_table
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTaskConfig
from fairseq_maelm.tasks.finetuning import FineTuningCriterion, FineTuningTask, NoOptions
from fairseq_maelm.text.dictionary import MASK, SENTENCEPIECE_MODEL, load_dictionary
from fairseq_maelm.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LEFT_TO_RIGHT = "this model's decoder reads from left to right and cannot fill masks"
_AS_PRETRAINED = "as_pretrained"
_COMPLETED = ("prompt", "masked_input", "encoder_mask_fraction", "encoder_positions", "finetune_from_model")


@dataclass
class PromptTaskConfig(EncoderTaskConfig):
    """Options of the task."""

    data: str = option(
        MISSING, help="folder with the checkpoint's dict.txt and sentencepiece.bpe.model, such as its data folder"
    )
    prompt: str = option(
        MISSING, help="a GLUE task (CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE) or a .yaml or .json file"
    )
    examples: Optional[str] = option(
        None,
        help="folder with train.tsv and valid.tsv, tables without a header line, whose columns are the "
        "sentences and the label",
    )
    several_pieces: bool = option(
        False,
        help="allow label words of several pieces, each predicted at its own mask; a word's score is the mean "
        "log-probability of its pieces",
    )
    max_length: Optional[int] = option(
        None, help="maximum number of tokens in a sequence; longer sentences are truncated (default: the prompt's)"
    )
    masked_input: ChoiceEnum([_AS_PRETRAINED, *MASKED_INPUTS]) = option(  # type: ignore[valid-type]
        _AS_PRETRAINED,
        help="encoder's input at the prompt's mask (default: as in the pretraining of --finetune-from-model, or "
        "'dropped' without that option)",
    )
    encoder_mask_fraction: Optional[float] = option(
        None,
        help="fraction of masks that stayed in the encoder's input in pretraining (delta); above 0.5, the prompt's "
        "mask stays there too (default: the checkpoint's)",
        minimum=0,
        maximum=1,
    )
    encoder_positions: ChoiceEnum([_AS_PRETRAINED, *ENCODER_POSITIONS]) = option(  # type: ignore[valid-type]
        _AS_PRETRAINED, help="positions of the tokens that the encoder reads: the original ones, or consecutive ones"
    )
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")


def complete_view(cfg: Any) -> EncoderView:
    """Complete the encoder's input options from the pretrained checkpoint; return them as an ``EncoderView``."""
    pretrained = EncoderView()
    # The path is set only when training starts; checkpoints do not store it.
    if cfg.finetune_from_model:
        pretrained = read_checkpoint(Path(cfg.finetune_from_model)).view
        cfg.finetune_from_model = None
    if str(cfg.masked_input) == _AS_PRETRAINED:
        cfg.masked_input = pretrained.masked_input
    if cfg.encoder_mask_fraction is None:
        cfg.encoder_mask_fraction = pretrained.mask_fraction if str(cfg.masked_input) == "dropped" else 0.0
    if str(cfg.encoder_positions) == _AS_PRETRAINED:
        cfg.encoder_positions = pretrained.positions
    return EncoderView(str(cfg.masked_input), cfg.encoder_mask_fraction, str(cfg.encoder_positions))


def prompt_input(
    examples: Sequence[Sequence[np.ndarray]], symbols: Symbols, view: EncoderView, width: int | None = None
) -> dict[str, Any]:
    """Collate outputs of ``Prompter.encode`` into ``src_tokens``, ``src_lengths`` and ``layout`` of their sequences.

    An example has C sequences, one for each distinct number of pieces in label words. The first sequences of all
    examples come first, then their second ones, and so on. They are padded to ``width``, for few different shapes, or
    to the longest one. ``view`` is what the encoder sees at masks; predictions are made at masks only.
    """
    sequences = [example[variant] for variant in range(len(examples[0])) for example in examples]
    lengths = np.array([len(sequence) for sequence in sequences])
    tokens = pad_rows(sequences, lengths, symbols.pad, width)
    planned = None if width is None else 0
    return encoder_input_of_masks(tokens, lengths, tokens == symbols.mask, view, symbols.pad, planned)


def label_scores(logits: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """Return scores <float32>[B, K] of K labels from logits <float>[M, V] at the masks of ``prompt_input``'s batch.

    ``pieces`` are the token ids of the K label words. The score of a word with n pieces is the mean log-probability of
    its pieces in the sequence with n masks. If all words are single pieces, scores are logits instead:
    log-probabilities up to a constant per example.
    """
    counts = sorted({len(word) for word in pieces})
    examples = len(logits) // sum(counts)
    if counts == [1]:
        return torch.stack([logits[:, piece] for (piece,) in pieces], dim=1).float()
    blocks = dict(zip(counts, logits.split([examples * count for count in counts])))
    log_probabilities = {
        count: F.log_softmax(block.float(), dim=-1).view(examples, count, -1) for count, block in blocks.items()
    }
    each = [[log_probabilities[len(word)][:, at, piece] for at, piece in enumerate(word)] for word in pieces]
    return torch.stack([torch.stack(of_word).mean(dim=0) for of_word in each], dim=1)


class PromptDataset(BatchDataset):
    """A split in memory. All sequences of an example count towards ``--max-tokens``.

    ``examples`` are outputs of ``Prompter.encode``; ``targets`` are class indices <int64> or numbers <float32>. Without
    a ``seed``, as in validation, examples are ordered by length.
    """

    largest_item, remedy = "an example", "a smaller --max-length"
    # Wide, so that few-shot examples are batched with different examples in every epoch.
    widest_bucket = 0.25

    def __init__(
        self,
        examples: Sequence[Sequence[np.ndarray]],
        targets: np.ndarray,
        symbols: Symbols,
        view: EncoderView,
        seed: int | None = None,
    ) -> None:
        sizes, counts = (np.array([of(map(len, each)) for each in examples], dtype=np.int64) for of in (max, sum))
        super().__init__(sizes, "shortest" if seed is None else "buckets", seed or 0, counts)
        self.examples, self.targets, self.symbols, self.view = examples, targets, symbols, view
        self.described, self.warnings = f"{len(examples):,} examples", ()

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Make a batch with ``ntokens``, ``target`` [B], and ``net_input`` from ``prompt_input``."""
        width = self.width(indices) if self.few_shapes else None
        net_input = prompt_input([self.examples[index] for index in indices], self.symbols, self.view, width)
        return {
            "ntokens": int(net_input["layout"]["lengths"].sum()),
            "net_input": net_input,
            "target": torch.from_numpy(self.targets[indices]),
        }


@register_task("maelm_prompt", dataclass=PromptTaskConfig)
class PromptTask(FineTuningTask):
    """Classification or regression by label words at a mask, with the checkpoint's decoder and LM head."""

    name = "maelm_prompt"
    length_option = "--max-length"
    predicts_masked_tokens = True

    def __init__(self, cfg: Any, dictionary: Dictionary, prompter: Prompter, view: EncoderView) -> None:
        super().__init__(cfg, dictionary, prompter.prompt.answers)
        self.longest = prompter.max_length
        self.prompter = prompter
        self.encoder_view = view

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> "PromptTask":
        """Load the vocabulary and the prompt, and build the task; called by fairseq."""
        if from_checkpoint:
            # A checkpoint contains its prompt; an untrusted one must not open files.
            cfg.finetune_from_model = None
            if not str(cfg.prompt).lstrip().startswith("{") and cfg.prompt not in BUILT_IN:
                raise ValueError(f"the checkpoint does not contain its prompt, only the name {cfg.prompt[:60]!a}")
        dictionary = load_dictionary(cfg.data)
        path = os.path.join(cfg.data, SENTENCEPIECE_MODEL)
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"there is no {SENTENCEPIECE_MODEL} in {cfg.data}: copy it there from the folder that the checkpoint "
                "was trained on"
            )
        prompt = find_prompt(cfg.prompt)
        cfg.prompt = prompt.to_json()
        prompter = Prompter(prompt, Tokenizer(path, dictionary), cfg.several_pieces, cfg.max_length)
        for label, pieces in zip(prompt.labels, prompter.pieces):
            logger.info("label %s: %s", label, " ".join(dictionary[piece] for piece in pieces))
        view = complete_view(cfg)
        # The prompt's file and the pretrained checkpoint may be gone when the new checkpoint is used.
        remember(cfg, **{name: getattr(cfg, name) for name in _COMPLETED})
        return cls(cfg, dictionary, prompter, view)

    def add_head(self, model: Any) -> None:
        """Check that the model's decoder and LM head, which are the head here, can fill masks."""
        decoder = getattr(model, "decoder", None)
        check_view(decoder, self.encoder_view)
        if decoder is not None and decoder.autoregressive:
            raise ValueError(LEFT_TO_RIGHT)

    def open_examples(self, split: str, training: bool) -> PromptDataset:
        """Read and tokenize a split's table."""
        if self.cfg.examples is None:
            raise ValueError(f"--examples FOLDER is required: the folder with {split}.tsv")
        path, prompt = Path(self.cfg.examples) / f"{split}.tsv", self.prompter.prompt
        rows = list(read_table(path, texts=prompt.sentences, complete=any))
        if unlabeled := [row.place for row in rows if row.label is None]:
            raise ValueError(f"{unlabeled[0]} has no label")
        targets = np.array([self.labels.target(row.label, row.place) for row in rows])
        progress = tqdm(rows, desc=split, unit=" examples", mininterval=1, disable=len(rows) < 1000)
        return PromptDataset(
            [self.prompter.encode(row.texts) for row in progress],
            targets if prompt.bounds is None else targets.astype(np.float32),
            Symbols(self.dictionary.pad(), self.dictionary.index(MASK)),
            self.encoder_view,
            self.cfg.seed if training else None,
        )

    def scores(self, model: Any, sample: Mapping[str, Any]) -> Tensor:
        """Return the ``label_scores`` of a batch."""
        return label_scores(model(**sample["net_input"])[0], self.prompter.pieces)


@register_criterion("maelm_prompt", dataclass=NoOptions)
class PromptCriterion(FineTuningCriterion):
    """Cross-entropy over the label words, or a divergence for regression.

    It logs ``loss`` in bits per example; the task logs the prompt's metrics of the whole validation set.
    """

    accuracy = ""
