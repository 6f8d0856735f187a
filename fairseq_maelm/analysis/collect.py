"""Running a model over text and adding up Gram matrices, one for each layer, condition and set of tokens.

Conditions: "whole", the input as it is; "masked", the same input with <mask> in the masked places, as MLM pretrains;
"dropped", the masked tokens left out and the others at their original positions, as MAE-LM pretrains. Sets of tokens:
"real", "mask", and "all", which is the sum of the two and costs no product of its own.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.analysis.encoders import Encoder, Vocabulary
from fairseq_maelm.analysis.sequences import Blocks, batches, choose_blocks, padded_batch
from fairseq_maelm.analysis.spectrum import GramAccumulator
from fairseq_maelm.data.encoder_view import Shown, encoder_input
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks

logger = logging.getLogger(__name__)

CONDITIONS = ("whole", "masked", "dropped")


@dataclass(frozen=True)
class CollectSettings:
    """What is run.

    Attributes:
        conditions: of ``CONDITIONS``; none of them for those that suit the model.
        layers: which of 0 to L; None for all.
        mask_prob, leave_unmasked_prob, random_token_prob: as in pretraining.
        tokens: analyzed tokens at most, up to one block more.
        seed: of the choice of blocks and of the masks.
        batch_tokens: tokens of a batch, padding included.
        skip_special: leave special symbols, such as <s>, out of the representations; the model sees them.
        double: Gram products in double precision.
    """

    conditions: Sequence[str]
    layers: Optional[tuple[int, ...]]
    mask_prob: float = 0.15
    leave_unmasked_prob: float = 0.0
    random_token_prob: float = 0.0
    tokens: int = 5_000_000
    seed: int = 1
    batch_tokens: int = 16_384
    skip_special: bool = False
    double: bool = False


class ModelInput(NamedTuple):
    """One batch under one condition, on the model's device.

    Attributes:
        tokens: <int64>[B, S] what the encoder sees.
        positions: <int64>[B, S] original positions, or None for 0, 1, 2, ...
        real: <int64>[n] rows of the flattened batch that are real tokens; None if all are.
        mask: <int64>[m] rows that are <mask>; None if there is none.
    """

    tokens: Tensor
    positions: Optional[Tensor]
    real: Optional[Tensor]
    mask: Optional[Tensor]


class LayerGrams:
    """Accumulators of real and [MASK] tokens in the chosen layers under one condition."""

    def __init__(self, layers: Sequence[int], width: int, device: str, double: bool) -> None:
        self.layers = layers
        self.real = [GramAccumulator(width, device, double) for _ in layers]
        self.mask = [GramAccumulator(width, device, double) for _ in layers]

    def add(self, states: Sequence[Tensor], batch: ModelInput) -> None:
        """Add a batch: L + 1 times <float>[B, S, D], and which rows are what."""
        for place, layer in enumerate(self.layers):
            rows = states[layer].flatten(0, 1)
            self.real[place].add(rows if batch.real is None else rows.index_select(0, batch.real))
            if batch.mask is not None:
                self.mask[place].add(rows.index_select(0, batch.mask))

    def sets(self, place: int) -> dict[str, GramAccumulator]:
        """The sets of tokens that there are: "real", and with masks also "mask" and "all"."""
        real, mask = self.real[place], self.mask[place]
        return {"real": real, "mask": mask, "all": real.merged(mask)} if mask.rows else {"real": real}


def masking_scheme(settings: CollectSettings, vocabulary: Vocabulary) -> MaskingScheme:
    """The scheme of pretraining over a model's vocabulary."""
    return MaskingScheme(
        mask_prob=settings.mask_prob,
        real_tokens=np.flatnonzero(~vocabulary.special),
        leave_unmasked_prob=settings.leave_unmasked_prob,
        random_token_prob=settings.random_token_prob,
        protected=None if vocabulary.masks_special else vocabulary.special,
    )


def condition_input(
    condition: str, tokens: np.ndarray, lengths: np.ndarray, draw: MaskDraw, vocabulary: Vocabulary
) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """What the encoder sees.

    Args:
        condition: of ``CONDITIONS``.
        tokens: <int64>[B, T] full sequences, padded on the right.
        lengths: <int64>[B].
        draw: of the masks.
        vocabulary: of the model.

    Returns:
        tokens <int64>[B, S], padded on the right, and original positions <int64>[B, S] where they are not 0, 1, 2, ...
    """
    if condition == "whole":
        return tokens, None
    if condition == "masked":
        return np.where(draw.masked, vocabulary.mask, draw.tokens), None
    visible = (np.arange(tokens.shape[1])[None, :] < lengths[:, None]) & ~draw.masked
    seen = encoder_input(Shown(draw.tokens, visible, visible), draw.predicted, lengths, vocabulary.pad)
    positions = None if vocabulary.consecutive_positions else seen["layout"]["positions"].numpy()
    return seen["src_tokens"].numpy(), positions


def model_input(
    tokens: np.ndarray, positions: Optional[np.ndarray], vocabulary: Vocabulary, skip_special: bool, device: str
) -> ModelInput:
    """Say which tokens count as what, and move a batch to the device."""
    mask = tokens == vocabulary.mask
    left_out = tokens == vocabulary.pad
    if skip_special:
        left_out = left_out | vocabulary.special[tokens]
    real = ~left_out & ~mask

    def rows(chosen: np.ndarray) -> Tensor:
        return torch.from_numpy(np.flatnonzero(chosen)).to(device)

    return ModelInput(
        torch.from_numpy(tokens).to(device),
        None if positions is None else torch.from_numpy(positions).to(device),
        None if real.all() else rows(real),
        rows(mask) if mask.any() else None,
    )


def model_inputs(
    encoder: Encoder, blocks: Blocks, settings: CollectSettings, device: str
) -> Iterator[tuple[int, dict[str, ModelInput]]]:
    """Make all batches: the number of original tokens, and the input under each condition."""
    vocabulary = encoder.vocabulary
    scheme = masking_scheme(settings, vocabulary)
    chosen = choose_blocks(blocks.sizes, settings.tokens, settings.seed)
    for indices in batches(chosen, blocks.sizes, settings.batch_tokens):
        tokens, lengths = padded_batch(blocks, indices, vocabulary.pad)
        draw = draw_masks(scheme, tokens, lengths, indices, settings.seed, epoch=1)
        inputs = {}
        for condition in settings.conditions:
            seen, positions = condition_input(condition, tokens, lengths, draw, vocabulary)
            inputs[condition] = model_input(seen, positions, vocabulary, settings.skip_special, device)
        yield int(lengths.sum()), inputs


@torch.inference_mode()
def collect(
    encoder: Encoder, blocks: Blocks, settings: CollectSettings, device: str = "cpu", name: str = "model"
) -> dict[str, LayerGrams]:
    """Add up the Gram matrices of a model's representations.

    Memory does not grow with the text: one batch, and two matrices <float64>[D, D] for each layer and condition.

    Args:
        encoder: the model, on the device.
        blocks: the text.
        settings: what to run.
        device: where to run it.
        name: for the progress bar.

    Returns:
        for each condition its matrices.
    """
    layers = tuple(range(encoder.num_layers + 1)) if settings.layers is None else settings.layers
    grams = {condition: LayerGrams(layers, encoder.width, device, settings.double) for condition in settings.conditions}
    total = int(blocks.sizes[choose_blocks(blocks.sizes, settings.tokens, settings.seed)].sum())
    if total < settings.tokens:
        logger.info("%s: the text has %s tokens, all are analyzed", name, f"{total:,}")
    with tqdm(total=total, desc=name, unit=" tokens", unit_scale=True, mininterval=1.0) as progress:
        for count, inputs in model_inputs(encoder, blocks, settings, device):
            for condition, batch in inputs.items():
                grams[condition].add(encoder.hidden_states(batch.tokens, batch.positions), batch)
            progress.update(count)
    return grams
