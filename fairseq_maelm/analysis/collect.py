"""Run a model over text and add up Gram matrices, one for each layer, condition and set of tokens.

Conditions: "whole", the input as it is; "masked", the same input with <mask> at the masked positions, as MLM is
pretrained; "dropped", without the masked tokens and with the others at their original positions, as MAE-LM is
pretrained. Sets of tokens: "real", "mask", and "all", the sum of these two.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.analysis.checkpoints import CheckpointEncoder, Vocabulary, chosen_layers
from fairseq_maelm.analysis.spectrum import GramAccumulator
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks
from fairseq_maelm.data.masking_variants import VisibleTokens, encoder_input
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.options import option

logger = logging.getLogger(__name__)

CONDITIONS = ("whole", "masked", "dropped")
MEASURED, _RUN = "measurement", "execution"
# Together with the seed, this key determines the order in which blocks are chosen.
_ORDER = 7


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """Options of a pass over text."""

    conditions: tuple[str, ...] = option(
        (), help="inputs to compare: whole (unmasked text), masked (with <mask>), dropped (without the masked tokens) "
        "(default: whole and masked; for MAE-LM checkpoints also dropped)", choices=CONDITIONS, group=MEASURED,
    )  # fmt: skip
    layers: tuple[int, ...] | None = option(
        None, help="layers, such as 0 6 12; 0 is the embeddings (default: all)", group=MEASURED
    )
    mask_prob: float = option(0.15, help="fraction of tokens to mask", group=MEASURED)
    leave_unmasked_prob: float = option(
        0.0, help="fraction of the predicted tokens that the encoder reads unchanged (BERT: 0.1)", group=MEASURED
    )
    random_token_prob: float = option(
        0.0, help="fraction of the predicted tokens that the encoder reads as random real tokens (BERT: 0.1)",
        group=MEASURED,
    )  # fmt: skip
    skip_special_tokens: bool = option(
        False, help="leave out the representations of special symbols, which the model still sees", group=MEASURED
    )
    tokens: int = option(
        5_000_000, help="number of tokens to analyze, rounded up to whole blocks", minimum=1, group=_RUN
    )
    batch_tokens: int = option(16_384, help="number of tokens in a batch, padding included", minimum=1, group=_RUN)
    seed: int = option(1, help="random seed of the masks and of the choice of text", minimum=0, group=_RUN)
    double: bool = option(
        False,
        help="compute products in double precision, which resolves singular values below 1e-3 of the largest",
        group=_RUN,
    )


class TextBlocks:
    """A text file cut into blocks of whole lines of one document, as in pretraining.

    Args:
        path: UTF-8 text with one paragraph per line and a blank line between documents.
        encoder: tokenizes the text.
        block_size: largest number of tokens in a block, special symbols included.
        tokens: number of tokens after which reading ends.

    Raises:
        ValueError: the file is not UTF-8 text or contains no tokens.
    """

    def __init__(self, path: Path, encoder: CheckpointEncoder, block_size: int, tokens: int) -> None:
        vocabulary = encoder.vocabulary
        lines: list[list[int]] = []
        numbered = numbered_lines(path)
        for _, line in tqdm(numbered, desc=f"reading {path.name}", unit=" lines", leave=False, mininterval=1.0):
            encoded = encoder.encode_line(line)
            lines.append([*encoded, vocabulary.line_end] if encoded else [])
            tokens -= len(lines[-1])
            if tokens <= 0:
                break
        blocks = pack(lines, block_size - 1)
        self._blocks = [np.array([vocabulary.first, *block], dtype=np.int64) for block in blocks]
        if not self._blocks:
            raise ValueError(f"{path} has no line with a token")
        self.sizes = np.array([len(block) for block in self._blocks], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return a block <int64>[n]."""
        return self._blocks[index]


Blocks = TokenBlocks | TextBlocks


def pack(lines: Iterable[list[int]], room: int) -> Iterator[list[int]]:
    """Fill blocks of at most ``room`` tokens with whole lines of one document; an empty line ends a document.

    Lines longer than a block are cut.
    """
    block: list[int] = []
    for line in chain(lines, [[]]):
        if block and (not line or len(block) + len(line) > room):
            yield block
            block = []
        block = block + line
        while len(block) > room:
            yield block[:room]
            block = block[room:]


def choose_blocks(sizes: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """Choose random blocks that hold at least ``tokens`` tokens together, or all blocks if there are fewer.

    Returns:
        <int64>[chosen] by descending size, so that batches have little padding and the largest batch comes first.
    """
    order = np.random.default_rng([seed, _ORDER]).permutation(len(sizes))
    chosen = order[: int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1]
    return chosen[np.argsort(-sizes[chosen], kind="stable")]


def batches(chosen: np.ndarray, sizes: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Group blocks of descending size into batches of at most ``batch_tokens`` tokens with padding, or of one block."""
    result: list[list[int]] = []
    for index in chosen.tolist():
        if not result or (len(result[-1]) + 1) * sizes[result[-1][0]] > batch_tokens:
            result.append([])
        result[-1].append(index)
    return [np.array(batch, dtype=np.int64) for batch in result]


class ModelInput(NamedTuple):
    """One batch under one condition, on the model's device."""

    tokens: Tensor  # <int64>[B, S] the encoder's input
    positions: Tensor | None  # <int64>[B, S] original positions; None for 0, 1, 2, ...
    real: Tensor | None  # <int64>[n] rows of real tokens in the flattened batch; None for all rows
    mask: Tensor | None  # <int64>[m] rows of <mask>; None if there are none


class LayerGrams:
    """Gram matrices of real and of [MASK] tokens in the chosen layers under one condition."""

    def __init__(self, layers: Sequence[int], width: int, device: str, double: bool) -> None:
        self.layers = layers
        self.real = [GramAccumulator(width, device, double) for _ in layers]
        self.mask = [GramAccumulator(width, device, double) for _ in layers]

    def add(self, states: Sequence[Tensor], batch: ModelInput) -> None:
        """Add the states of a batch, L + 1 times <float>[B, S, D]."""
        for place, layer in enumerate(self.layers):
            rows = states[layer].flatten(0, 1)
            self.real[place].add(rows if batch.real is None else rows.index_select(0, batch.real))
            if batch.mask is not None:
                self.mask[place].add(rows.index_select(0, batch.mask))

    def sets(self, place: int) -> dict[str, GramAccumulator]:
        """Return the accumulators of "real" tokens, and if there are masks also those of "mask" and "all"."""
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
    seen = encoder_input(VisibleTokens(draw.tokens, visible, visible), draw.predicted, lengths, vocabulary.pad)
    positions = None if vocabulary.consecutive_positions else seen["layout"]["positions"].numpy()
    return seen["src_tokens"].numpy(), positions


def _model_input(
    tokens: np.ndarray, positions: np.ndarray | None, vocabulary: Vocabulary, skip_special: bool, device: str
) -> ModelInput:
    mask = tokens == vocabulary.mask
    left_out = tokens == vocabulary.pad
    if skip_special:
        left_out = left_out | vocabulary.special[tokens]
    real = ~left_out & ~mask
    real_rows, mask_rows = (torch.from_numpy(np.flatnonzero(chosen)).to(device) for chosen in (real, mask))
    return ModelInput(
        torch.from_numpy(tokens).to(device),
        None if positions is None else torch.from_numpy(positions).to(device),
        None if real.all() else real_rows,
        mask_rows if mask.any() else None,
    )


def model_inputs(
    encoder: CheckpointEncoder, blocks: Blocks, settings: CollectSettings, device: str
) -> Iterator[tuple[int, dict[str, ModelInput]]]:
    """Yield all batches: the number of original tokens, and the input under each condition."""
    vocabulary = encoder.vocabulary
    scheme = MaskingScheme(
        mask_prob=settings.mask_prob,
        real_tokens=np.flatnonzero(~vocabulary.special),
        leave_unmasked_prob=settings.leave_unmasked_prob,
        random_token_prob=settings.random_token_prob,
        protected=None if vocabulary.masks_special else vocabulary.special,
    )
    chosen = choose_blocks(blocks.sizes, settings.tokens, settings.seed)
    for indices in batches(chosen, blocks.sizes, settings.batch_tokens):
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
    encoder: CheckpointEncoder, blocks: Blocks, settings: CollectSettings, device: str = "cpu", name: str = "model"
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
