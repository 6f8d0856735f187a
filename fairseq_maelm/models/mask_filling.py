"""Predictions for masks that are already in the text, such as those of a prompt."""

from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input_of_masks
from fairseq_maelm.modules.output_positions import predicted_positions
from fairseq_maelm.modules.weight_casts import computing


@torch.no_grad()
def masked_token_logits(model: Any, view: EncoderView, sequences: list[np.ndarray]) -> Tensor:
    """Return the logits at the masks of sequences, in evaluation mode.

    Args:
        model: a model with an LM head.
        view: the encoder's view of masked tokens in pretraining.
        sequences: tokens <int64>[n] with <mask>.

    Returns:
        Logits <float>[M, V] at the masks of all sequences, in order.
    """
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
def target_log_probabilities(model: Any, net_input: dict[str, Any], target: Tensor) -> Tensor:
    """Return the log-probabilities of given tokens at masked positions, without computing all logits.

    Args:
        model: a model with an LM head, in evaluation mode.
        net_input: ``src_tokens`` and ``layout``, on the model's device.
        target: <int64>[M, K] tokens to score at each masked position.

    Returns:
        <float32>[M, K] log-probabilities in nats.
    """
    tokens, layout, embedding = net_input["src_tokens"], net_input["layout"], model.encoder.embed_tokens.weight
    output_at = predicted_positions(layout)
    with computing(model):
        visible = model.encode(tokens, layout, model.decoding.encoder_output_at(output_at, layout))
        decoded = model.decode(model.reassemble(visible, layout), visible, layout, output_at)
        return model.lm_head.log_probabilities(decoded, embedding, target)
