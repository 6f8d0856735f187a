"""fairseq's own RoBERTa and our model: the same function of the same weights."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.models.roberta import RobertaModel, base_architecture

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
