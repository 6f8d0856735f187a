"""Run a checkpoint's encoder over text and add up Gram matrices, one for each layer, condition and set of tokens.

Conditions:

- "whole": the input as it is.
- "masked": the input with <mask> at the masked positions, as in MLM pretraining.
- "dropped": the input without the masked tokens, as in MAE-LM pretraining. The other tokens keep their positions,
  unless pretraining renumbered them.

Sets of tokens: "real", "mask", and "all" (both).
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.analysis.analysis_settings import AnalysisSettings
from fairseq_maelm.analysis.spectrum import GramAccumulator
from fairseq_maelm.analysis.theorem import AttentionWeights, attention_weights
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.data.blocks import TokenBlocks, block_slices
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks
from fairseq_maelm.data.masking_variants import VisibleTokens, encoder_input
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.models.batched_inference import batches_by_length
from fairseq_maelm.models.build import build_model
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import MASK, load_dictionary, special_tokens
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer

logger = logging.getLogger(__name__)

# Options of the pretraining task that determine the encoder's input.
_TASK_OPTIONS = (
    *("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "mask_prob_end"),
    *("leave_unmasked_prob", "random_token_prob", "mask_whole_words", "protect_special_tokens"),
)


@dataclass(frozen=True)
class Vocabulary:
    """The special symbols, and how pretraining treated them."""

    pad: int
    mask: int
    first: int  # put before every sequence
    line_end: int  # put after every line of text
    special: np.ndarray  # <bool>[V] True for symbols that are not text
    masks_special: bool  # whether special symbols may be masked
    consecutive_positions: bool = False  # whether positions are consecutive after masked tokens are dropped


class CheckpointEncoder:
    """A checkpoint's encoder of ``num_layers`` L, ``num_heads`` H and ``width`` D, which returns all layers' states.

    Sequences have at most ``max_length`` tokens, special symbols included. ``kind`` is "mlm" if the encoder saw <mask>
    in pretraining, "maelm" if not, or "fine-tuned"; ``settings`` are facts to record in the results. The argument
    ``vocabulary`` is the folder of the dictionary and tokenizer, if they are not in the checkpoint's folder.
    """

    def __init__(self, path: Path, vocabulary: Path | None) -> None:
        self._folder = find_dictionary([path.parent, *([] if vocabulary is None else [vocabulary])])
        self._dictionary = dictionary = load_dictionary(str(self._folder))
        checkpoint = read_checkpoint(path)
        task, size, self._view = checkpoint.config.task, checkpoint.config.model, checkpoint.view
        self._model = build_model(checkpoint, dictionary)
        self.vocabulary = Vocabulary(
            pad=dictionary.pad(),
            mask=dictionary.index(MASK),
            first=dictionary.bos(),
            line_end=dictionary.eos(),
            special=special_tokens(dictionary),
            masks_special=not getattr(task, "protect_special_tokens", False),
            consecutive_positions=self._view.positions == "consecutive",
        )
        self.num_layers = len(self._model.encoder.layers)
        self.num_heads = int(size.encoder_attention_heads)
        self.width = int(size.encoder_embed_dim)
        self.max_length = self._model.max_positions()
        # A mask fraction (delta) above 0 keeps some masks in the input.
        sees_masks = self._view.masked_input in ("kept", "reset") or self._view.mask_fraction > 0.0
        self.kind = "mlm" if sees_masks else "maelm"
        if not checkpoint.predicts_masked_tokens:
            self.kind = "fine-tuned"
        said = {option: task[option] for option in _TASK_OPTIONS if option in task}
        self.settings: dict[str, Any] = {"source": "fairseq checkpoint", "architecture": str(size._name), **said}

    def to(self, device: str) -> "CheckpointEncoder":
        """Move the model to a device."""
        self._model.to(device)
        return self

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Return L + 1 tensors <float>[B, S, D]: the embeddings and each layer's output.

        Tokens <int64>[B, S] are padded on the right; their positions <int64>[B, S] are 0, 1, 2, ... by default.
        """
        return self._model.encoder(tokens, positions).all_states

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return open_tokenizer(find_tokenizer([self._folder]), self._dictionary)

    def encode_line(self, line: str) -> list[int]:
        """Tokenize a line of text, and drop any <mask>."""
        return [token for token in self._tokenizer.encode(line) if token != self.vocabulary.mask]

    def check_data(self, folder: Path) -> None:
        """Refuse data that were prepared with another dictionary."""
        if load_dictionary(str(folder)).symbols != self._dictionary.symbols:
            raise ValueError(
                f"the data in {folder} were prepared with a dictionary other than the model's: instead of --data give "
                "--text, a text file that each model tokenizes itself"
            )

    def attention_weights(self) -> Iterator[AttentionWeights]:
        """Yield each layer's attention projections."""
        for layer in self._model.encoder.layers:
            attention = layer.self_attn
            heads, width = attention.num_heads, self.width
            # The weight is [3 H d_h, D].
            query, key, value = attention.qkv_proj.weight.view(3, heads, width // heads, width).transpose(-1, -2)
            output = attention.out_proj.weight.view(width, heads, width // heads).permute(1, 2, 0)
            yield attention_weights(query, key, value, output)


def chosen_layers(name: str, encoder: CheckpointEncoder, layers: Sequence[int] | None) -> list[int]:
    """Return a model's chosen layers, sorted; by default all. Raise a ValueError for a layer out of range."""
    for layer in layers or ():
        if not 0 <= layer <= encoder.num_layers:
            raise ValueError(f"{name} has no layer {layer}: its layers are 0 (embeddings) to {encoder.num_layers}")
    return list(range(encoder.num_layers + 1)) if layers is None else sorted(set(layers))


_ORDER = 7  # with the seed, determines the order in which blocks are chosen


class TextBlocks:
    """Blocks of whole lines from a text file, cleaned and never across documents, as in pretraining.

    The file has one paragraph per line and a blank line between documents. A block has at most ``block_size`` tokens,
    special symbols included; reading ends after ``tokens`` tokens.
    """

    def __init__(self, path: Path, encoder: CheckpointEncoder, block_size: int, tokens: int) -> None:
        vocabulary, lines = encoder.vocabulary, list[list[int]]()
        numbered = numbered_lines(path)
        for _, line in tqdm(numbered, desc=f"reading {path.name}", unit=" lines", leave=False, mininterval=1.0):
            # A line without tokens is a lone end symbol, the blank line between documents.
            lines.append([*encoder.encode_line(clean_text(line)), vocabulary.line_end])
            tokens -= len(lines[-1]) if len(lines[-1]) > 1 else 0
            if tokens <= 0:
                break
        self._stream = np.array(list(chain.from_iterable(lines)), dtype=np.int64)
        self._slices = block_slices(np.array(list(map(len, lines)), dtype=np.int64), "complete_doc", block_size - 1)
        if not len(self._slices):
            raise ValueError(f"{path} has no text: no line contains a token")
        self._first, self.sizes = vocabulary.first, self._slices[:, 1] - self._slices[:, 0] + 1

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return a block <int64>[n]."""
        return np.append(self._first, self._stream[slice(*self._slices[index])])


Blocks = TokenBlocks | TextBlocks


def choose_blocks(sizes: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """Choose random blocks <int64>[chosen] with at least ``tokens`` tokens in total, or all blocks for a short text."""
    order = np.random.default_rng([seed, _ORDER]).permutation(len(sizes))
    return order[: int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1]


class ModelInput(NamedTuple):
    """One batch under one condition, on the model's device."""

    tokens: Tensor  # <int64>[B, S] the encoder's input
    positions: Tensor | None  # <int64>[B, S] original positions; None for 0, 1, 2, ...
    real: Tensor  # <int64>[n] rows of real tokens in the flattened batch
    mask: Tensor  # <int64>[m] rows of <mask>


class LayerGrams:
    """Gram matrices for real tokens and for <mask>, by layer, under one condition."""

    def __init__(self, layers: Sequence[int], width: int, device: str, double: bool) -> None:
        self.layers = layers
        self.real = [GramAccumulator(width, device, double) for _ in layers]
        self.mask = [GramAccumulator(width, device, double) for _ in layers]

    def add(self, states: Sequence[Tensor], batch: ModelInput) -> None:
        """Add a batch's states, L + 1 tensors <float>[B, S, D]."""
        for place, layer in enumerate(self.layers):
            rows = states[layer].flatten(0, 1)
            self.real[place].add(rows.index_select(0, batch.real))
            self.mask[place].add(rows.index_select(0, batch.mask))

    def sets(self, place: int) -> dict[str, GramAccumulator]:
        """Return the accumulators by set of tokens: "real", and if there are masks also "mask" and "all"."""
        real, mask = self.real[place], self.mask[place]
        return {"real": real, "mask": mask, "all": real.merged(mask)} if mask.rows else {"real": real}


def condition_input(
    condition: str, tokens: np.ndarray, lengths: np.ndarray, draw: MaskDraw, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the input for sequences <int64>[B, T]: tokens <int64>[B, S] and positions, or None for 0, 1, 2, ..."""
    if condition == "whole":
        return tokens, None
    if condition == "masked":
        return np.where(draw.masked, vocabulary.mask, draw.tokens), None
    visible = (np.arange(tokens.shape[1])[None, :] < lengths[:, None]) & ~draw.masked
    seen = encoder_input(VisibleTokens(draw.tokens, visible), draw.predicted, lengths, vocabulary.pad)
    positions = None if vocabulary.consecutive_positions else seen["layout"]["positions"].numpy()
    return seen["src_tokens"].numpy(), positions


def _model_input(
    tokens: np.ndarray, positions: np.ndarray | None, vocabulary: Vocabulary, skip_special: bool, device: str
) -> ModelInput:
    mask = tokens == vocabulary.mask
    left_out = tokens == vocabulary.pad
    if skip_special:
        left_out = left_out | vocabulary.special[tokens]
    real_rows, mask_rows = (np.flatnonzero(chosen) for chosen in (~left_out & ~mask, mask))
    seen, real, masks = (torch.from_numpy(array).to(device) for array in (tokens, real_rows, mask_rows))
    return ModelInput(seen, None if positions is None else torch.from_numpy(positions).to(device), real, masks)


def model_inputs(
    encoder: CheckpointEncoder, blocks: Blocks, settings: AnalysisSettings, device: str
) -> Iterator[tuple[int, dict[str, ModelInput]]]:
    """Yield each batch's number of original tokens and its input under each condition."""
    vocabulary = encoder.vocabulary
    scheme = MaskingScheme(
        mask_prob=settings.mask_prob,
        real_tokens=np.flatnonzero(~vocabulary.special),
        leave_unmasked_prob=settings.leave_unmasked_prob,
        random_token_prob=settings.random_token_prob,
        protected=None if vocabulary.masks_special else vocabulary.special,
    )
    chosen = choose_blocks(blocks.sizes, settings.tokens, settings.seed)
    for indices in (chosen[places] for places in batches_by_length(blocks.sizes[chosen], settings.batch_tokens)):
        rows = [blocks[int(index)] for index in indices]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        tokens = pad_rows(rows, lengths, vocabulary.pad)
        draw = draw_masks(scheme, tokens, lengths, indices, settings.seed, epoch=1)
        inputs = {}
        for condition in settings.conditions:
            seen, positions = condition_input(condition, tokens, lengths, draw, vocabulary)
            inputs[condition] = _model_input(seen, positions, vocabulary, settings.skip_special_tokens, device)
        yield int(lengths.sum()), inputs


@torch.inference_mode()
def collect(
    encoder: CheckpointEncoder, blocks: Blocks, settings: AnalysisSettings, device: str = "cpu", name: str = "model"
) -> dict[str, LayerGrams]:
    """Add up the Gram matrices of a model's states under each condition, in memory that does not grow with the text."""
    layers = chosen_layers(name, encoder, settings.layers)
    grams = {condition: LayerGrams(layers, encoder.width, device, settings.double) for condition in settings.conditions}
    total = int(blocks.sizes[choose_blocks(blocks.sizes, settings.tokens, settings.seed)].sum())
    if total < settings.tokens:
        logger.info("%s: the text has only %s tokens; all of them are analyzed", name, f"{total:,}")
    with tqdm(total=total, desc=name, unit=" tokens", unit_scale=True, mininterval=1.0) as progress:
        for count, inputs in model_inputs(encoder, blocks, settings, device):
            for condition, batch in inputs.items():
                grams[condition].add(encoder.hidden_states(batch.tokens, batch.positions), batch)
            progress.update(count)
    return grams
