"""Predictions for masks that are already in a text or prompt."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input_of_masks
from fairseq_maelm.modules.autocast import computing
from fairseq_maelm.modules.output_positions import predicted_positions
from fairseq_maelm.text.cleaning import checked_texts
from fairseq_maelm.text.tokenizer import MASK


class MaskCandidate(NamedTuple):
    """A candidate for a mask, with its fields in the order of the tuples from fairseq's ``fill_mask``."""

    text: str  # the input with this mask filled; other masks stay
    probability: float  # of the token, in [0, 1]
    token: str  # as text, without the space before it


def fill_masks(
    hub: Any, text: str | Sequence[str], topk: int
) -> list[list[MaskCandidate]] | list[list[list[MaskCandidate]]]:
    """Predict the tokens at every ``<mask>``; see ``MaelmHubInterface.fill_mask``."""
    model = hub.model
    if model.decoder is not None and model.decoder.autoregressive:
        raise ValueError("this model's decoder reads from left to right and cannot fill masks")
    texts = checked_texts([text] if isinstance(text, str) else text)
    if not texts or type(topk) is not int or topk < 1:
        raise ValueError(f"fill_mask needs at least one text and a topk of at least 1, not {len(texts)} and {topk!r}")
    sequences = [hub.encode(each).numpy() for each in texts]
    for each, sequence in zip(texts, sequences):
        if model.mask_index not in sequence:
            raise ValueError(f"{each!r} has no {MASK} to fill")
        hub.check_length(len(sequence))
    view: EncoderView = getattr(hub.task, "encoder_view", EncoderView())
    probabilities = masked_token_logits(model, view, sequences).float().softmax(dim=-1)
    if not bool(probabilities.isfinite().all()):
        raise ValueError("the model's probabilities are not finite: its weights are damaged, or training diverged")
    values, candidates = probabilities.topk(min(topk, len(hub.dictionary)))
    rows = zip(candidates.tolist(), values.tolist(), strict=True)
    results = [
        [
            [_candidate(hub, sequence, position, *each) for each in zip(*next(rows))]
            for position in np.flatnonzero(sequence == model.mask_index).tolist()
        ]
        for sequence in sequences
    ]
    return results[0] if isinstance(text, str) else results


def _candidate(hub: Any, sequence: np.ndarray, position: int, token: int, probability: float) -> MaskCandidate:
    filled = sequence.copy()
    filled[position] = token
    text = hub.decode(torch.from_numpy(filled))
    return MaskCandidate(
        text if isinstance(text, str) else " ".join(text),
        probability,
        hub.tokenizer.decode([token]) or hub.dictionary[token],
    )


@torch.no_grad()
def masked_token_logits(model: Any, view: EncoderView, sequences: list[np.ndarray]) -> Tensor:
    """Return the logits <float>[M, V] at the masks of all sequences <int64>[n], in order, in evaluation mode."""
    lengths = np.array([len(sequence) for sequence in sequences])
    pad = model.encoder.padding_idx
    tokens = pad_rows(sequences, lengths, pad)
    net_input = encoder_input_of_masks(tokens, lengths, tokens == model.mask_index, view, pad)
    device = model.encoder.embed_tokens.weight.device
    training = model.training
    model.eval()
    try:
        return model(**utils.apply_to_sample(lambda tensor: tensor.to(device), net_input))[0]
    finally:
        model.train(training)


@torch.no_grad()
def target_log_probabilities(model: Any, net_input: dict[str, Any], target: Tensor, rows: Tensor) -> Tensor:
    """Return log-probabilities <float32>[N, K], in nats, of the tokens ``target`` <int64>[N, K] at masked positions.

    ``rows`` <int64>[N] are the positions, as indices of the M predicted positions of the batch. Not all logits are
    computed. The model must be in evaluation mode, and ``net_input`` (``src_tokens`` and ``layout``) on its device.
    """
    tokens, layout, embedding = net_input["src_tokens"], net_input["layout"], model.encoder.embed_tokens.weight
    with computing(model):
        decoded, _ = model.encode_and_decode(tokens, layout, predicted_positions(layout))
        return model.lm_head.log_probabilities(decoded[rows], embedding, target)
