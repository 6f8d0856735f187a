"""fairseq's own RoBERTa beside our model: the same function of the same weights."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.models.roberta import RobertaModel, base_architecture
from torch import Tensor

from fairseq_maelm.models.maelm import MaelmModel


def stock_roberta(model: MaelmModel, layers: int, width: int, ffn: int, heads: int, max_positions: int) -> RobertaModel:
    """A stock RoBERTa with random weights over the vocabulary of ``model``, without dropout."""
    args = Namespace(
        encoder_layers=layers,
        encoder_embed_dim=width,
        encoder_ffn_embed_dim=ffn,
        encoder_attention_heads=heads,
        max_positions=max_positions,
        tokens_per_sample=max_positions,
        dropout=0.0,
        attention_dropout=0.0,
    )
    base_architecture(args)
    roberta = RobertaModel.build_model(args, SimpleNamespace(source_dictionary=model.encoder.dictionary))
    for parameter in roberta.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return roberta.eval()


def copy_roberta_weights(roberta: dict[str, Tensor], model: MaelmModel) -> None:
    """Copy the weights of a stock RoBERTa into a model without decoder and relative bias.

    fairseq's position table has two rows in front that no position of a real token uses.
    """
    encoder = "encoder.sentence_encoder."
    state = {
        "encoder.identity": model.encoder.identity,
        "encoder.embed_tokens.weight": roberta[encoder + "embed_tokens.weight"],
        "encoder.embed_positions.weight": roberta[encoder + "embed_positions.weight"][2:],
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
    state["lm_head.bias"] = roberta["encoder.lm_head.bias"]
    model.load_state_dict(state)
