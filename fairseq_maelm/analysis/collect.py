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
from fairseq_maelm.arguments import option
from fairseq_maelm.data.encoder_view import Shown, encoder_input
from fairseq_maelm.data.masking import MaskDraw, MaskingScheme, draw_masks

logger = logging.getLogger(__name__)

CONDITIONS = ("whole", "masked", "dropped")
_MEASURED, _RUN = "what is measured", "how it is run"


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """What is run; the options explain themselves."""

    conditions: tuple[str, ...] = option(
        (),
        help="inputs: whole; masked, with <mask> in place; dropped, without the masked tokens (default: whole and "
        "masked, and for checkpoints pretrained so also dropped)",
        choices=CONDITIONS,
        group=_MEASURED,
    )
    layers: Optional[tuple[int, ...]] = option(
        None, help="layers, such as 0 6 12; 0 is the embeddings (default: all)", group=_MEASURED
    )
    mask_prob: float = option(0.15, help="fraction of tokens to mask", group=_MEASURED)
    leave_unmasked_prob: float = option(0.0, help="fraction of those left in place (BERT: 0.1)", group=_MEASURED)
    random_token_prob: float = option(0.0, help="fraction of those replaced (BERT: 0.1)", group=_MEASURED)
    skip_special_tokens: bool = option(
        False, help="leave <s>, </s> and the like out of the representations; the model sees them", group=_MEASURED
    )
    tokens: int = option(5_000_000, help="number of tokens to analyze, up to one block more", minimum=1, group=_RUN)
    batch_tokens: int = option(16_384, help="number of tokens in a batch, padding included", minimum=1, group=_RUN)
    seed: int = option(1, help="random seed of the masks and of the choice of text", minimum=0, group=_RUN)
    double: bool = option(False, help="take products in double precision, for singular values below 1e-3", group=_RUN)


class ModelInput(NamedTuple):
    """One batch under one condition, on the model's device."""

    tokens: Tensor  # <int64>[B, S] what the encoder sees
    positions: Optional[Tensor]  # <int64>[B, S] original positions, or None for 0, 1, 2, ...
    real: Optional[Tensor]  # <int64>[n] rows of the flattened batch that are real tokens; None if all are
    mask: Optional[Tensor]  # <int64>[m] rows that are <mask>; None if there is none


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
        """Return the sets of tokens that there are: "real", and with masks also "mask" and "all"."""
        real, mask = self.real[place], self.mask[place]
        return {"real": real, "mask": mask, "all": real.merged(mask)} if mask.rows else {"real": real}


def condition_input(
    condition: str, tokens: np.ndarray, lengths: np.ndarray, draw: MaskDraw, vocabulary: Vocabulary
) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """Return what the encoder sees of full sequences <int64>[B, T] of <int64>[B] tokens.

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


def _model_input(
    tokens: np.ndarray, positions: Optional[np.ndarray], vocabulary: Vocabulary, skip_special: bool, device: str
) -> ModelInput:
    """Say which tokens count as what, and move a batch to the device."""
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
    encoder: Encoder, blocks: Blocks, settings: CollectSettings, device: str
) -> Iterator[tuple[int, dict[str, ModelInput]]]:
    """Make all batches: the number of original tokens, and the input under each condition."""
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
        tokens, lengths = padded_batch(blocks, indices, vocabulary.pad)
        draw = draw_masks(scheme, tokens, lengths, indices, settings.seed, epoch=1)
        inputs = {}
        for condition in settings.conditions:
            seen, positions = condition_input(condition, tokens, lengths, draw, vocabulary)
            inputs[condition] = _model_input(seen, positions, vocabulary, settings.skip_special_tokens, device)
        yield int(lengths.sum()), inputs


@torch.inference_mode()
def collect(
    encoder: Encoder, blocks: Blocks, settings: CollectSettings, device: str = "cpu", name: str = "model"
) -> dict[str, LayerGrams]:
    """Add up the Gram matrices of a model's representations under each condition.

    Memory does not grow with the text: one batch, and two matrices <float64>[D, D] for each layer and condition.
    """
    layers = range(encoder.num_layers + 1) if settings.layers is None else sorted(set(settings.layers))
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
