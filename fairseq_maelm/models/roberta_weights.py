"""fairseq's RoBERTa as a special case: no decoder, masks kept in the encoder, no relative bias."""

from typing import Dict

import torch
from torch import Tensor

from fairseq_maelm.models.maelm import MaelmModel


def load_roberta_weights(model: MaelmModel, roberta: Dict[str, Tensor]) -> None:
    """Copy the weights of fairseq's stock RoBERTa; the model then computes the same function.

    Args:
        model: without decoder and without relative bias, of the same size and vocabulary.
        roberta: the state dictionary of ``fairseq.models.roberta.RobertaModel``. Its position table has two rows in
            front that no token uses.

    Raises:
        ValueError: if the model has a decoder or a relative bias, or another size.
    """
    if model.decoder is not None or model.encoder.relative_attention_bias is not None:
        raise ValueError(
            "RoBERTa has neither decoder nor relative bias: use decoder_layers 0 and relative_buckets none"
        )
    encoder = "encoder.sentence_encoder."
    state = {
        "encoder.identity": model.encoder.identity,
        "encoder.embed_tokens.weight": roberta[encoder + "embed_tokens.weight"],
        "encoder.embed_positions.weight": roberta[encoder + "embed_positions.weight"][2:],
        "lm_head.bias": roberta["encoder.lm_head.bias"],
    }
    for part in ("weight", "bias"):
        state[f"encoder.layernorm_embedding.{part}"] = roberta[f"{encoder}layernorm_embedding.{part}"]
        for name in ("dense", "layer_norm"):
            state[f"lm_head.{name}.{part}"] = roberta[f"encoder.lm_head.{name}.{part}"]
        for layer in range(len(model.encoder.layers)):
            theirs, ours = f"{encoder}layers.{layer}.", f"encoder.layers.{layer}."
            qkv = [roberta[f"{theirs}self_attn.{name}_proj.{part}"] for name in "qkv"]
            state[f"{ours}self_attn.qkv_proj.{part}"] = torch.cat(qkv)
            for name in ("self_attn.out_proj", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"):
                state[f"{ours}{name}.{part}"] = roberta[f"{theirs}{name}.{part}"]
    model.load_state_dict(state)
