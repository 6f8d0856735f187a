"""Run a model over text and add up Gram matrices, one for each layer, condition and set of tokens.

Conditions:

- "whole": the input as it is.
- "masked": the input with <mask> at the masked positions, as in MLM pretraining.
- "dropped": the input without the masked tokens, as in MAE-LM pretraining. The other tokens keep their positions,
  unless pretraining renumbered them.

Sets of tokens: "real", "mask", and "all" (both).
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.analysis.analysis_settings import AnalysisSettings
from fairseq_maelm.analysis.checkpoints import CheckpointEncoder, Vocabulary, chosen_layers
from fairseq_maelm.analysis.spectrum import GramAccumulator
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.blocks import TokenBlocks, block_slices
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks
from fairseq_maelm.data.masking_variants import VisibleTokens, encoder_input
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.models.batched_inference import batches_by_length
from fairseq_maelm.text.cleaning import clean_text

logger = logging.getLogger(__name__)

# Together with the seed, this key determines the order in which blocks are chosen.
_ORDER = 7


class TextBlocks:
    """Blocks of whole lines from a text file, cleaned and never across documents, as in pretraining.

    Args:
        path: UTF-8 text with one paragraph per line and a blank line between documents.
        encoder: tokenizes the text.
        block_size: largest number of tokens in a block, special symbols included.
        tokens: number of tokens after which reading ends.

    Raises:
        ValueError: the file is not UTF-8 text or contains no tokens.
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
    """Return the encoder's input for full sequences <int64>[B, T] with lengths <int64>[B].

    Returns:
        tokens <int64>[B, S], padded on the right, and their positions <int64>[B, S], or None for 0, 1, 2, ...
    """
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
    """Add up the Gram matrices of a model's representations under each condition.

    Memory does not grow with the text: it holds one batch, and two matrices <float64>[D, D] for each layer and
    condition.
    """
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
