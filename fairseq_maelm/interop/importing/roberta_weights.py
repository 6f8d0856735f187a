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
    state = roberta_state(roberta, len(model.encoder.layers), first_position=2)
    model.load_state_dict({"encoder.identity": model.encoder.identity, **state})


def roberta_state(roberta: Dict[str, Tensor], layers: int, first_position: int) -> Dict[str, Tensor]:
    """The weights of fairseq's stock RoBERTa by our names, without ``encoder.identity``.

    Args:
        roberta: as in ``load_roberta_weights``.
        layers: L.
        first_position: row of the position table at which the first token stands.
    """
    encoder = "encoder.sentence_encoder."
    state = {
        "encoder.embed_tokens.weight": roberta[encoder + "embed_tokens.weight"],
        "encoder.embed_positions.weight": roberta[encoder + "embed_positions.weight"][first_position:],
        "lm_head.bias": roberta["encoder.lm_head.bias"],
    }
    for part in ("weight", "bias"):
        state[f"encoder.layernorm_embedding.{part}"] = roberta[f"{encoder}layernorm_embedding.{part}"]
        for name in ("dense", "layer_norm"):
            state[f"lm_head.{name}.{part}"] = roberta[f"encoder.lm_head.{name}.{part}"]
        for layer in range(layers):
            theirs, ours = f"{encoder}layers.{layer}.", f"encoder.layers.{layer}."
            qkv = [roberta[f"{theirs}self_attn.{name}_proj.{part}"] for name in "qkv"]
            state[f"{ours}self_attn.qkv_proj.{part}"] = torch.cat(qkv)
            for name in ("self_attn.out_proj", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"):
                state[f"{ours}{name}.{part}"] = roberta[f"{theirs}{name}.{part}"]
    return state
