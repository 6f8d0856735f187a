"""Predictions for masks that are already in the text, as a person or a prompt puts them there."""

from typing import Any, Dict, List

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.encoder_view import EncoderView, encoder_input_of_masks
from fairseq_maelm.models.protocol import Model


@torch.no_grad()
def predict_masks(model: Model, net_input: Dict[str, Any]) -> Tensor:
    """Logits <float>[M, V] at the places to predict of a batch, as ``encoder_input`` makes it; without dropout."""
    device = model.encoder.embed_tokens.weight.device
    layout = {key: value.to(device) if torch.is_tensor(value) else value for key, value in net_input["layout"].items()}
    training = model.training
    model.eval()
    try:
        logits, _ = model(net_input["src_tokens"].to(device), layout=layout)
    finally:
        model.train(training)
    return logits


def masked_token_logits(model: Model, view: EncoderView, sequences: List[np.ndarray]) -> Tensor:
    """Score the masks of sequences, which the encoder sees, or does not see, as in pretraining.

    Args:
        model: with prediction head.
        view: what the encoder saw in pretraining.
        sequences: <int64>[n] each, with <mask>.

    Returns:
        logits <float>[M, V] of the masks of all sequences, in order.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    tokens = pad_rows(sequences, lengths, model.encoder.padding_idx)
    masks = tokens == model.mask_index
    return predict_masks(model, encoder_input_of_masks(tokens, lengths, masks, view, model.encoder.padding_idx))
