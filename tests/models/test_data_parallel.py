"""torch's own data parallelism trains every variant without looking for unused parameters, as fairseq starts it."""

import os
import socket
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support import FAMILIES, batch_of, model_config, model_of, random_sequences
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.layer_modes import execute

RANKS = 2
MODERN = FAMILIES["modern"]
# Changes of the small model; "kept" and "recompute" are ours, and "head" a kind of fine-tuning.
VARIANTS: list[dict[str, Any]] = [
    {"precision": "bf16", "recompute": True},
    {"decoder_layers": 0, "kept": True},
    {"decoder_attention": "self_cross", "recompute": True},
    {**MODERN, "decoder_attention": "cross"},
    {"decoder_attention": "causal_cross"},
    {**MODERN, "decoder_attention": "shared"},
    {"decoder_attention": "shared", "decoder_layers": 1, "recompute": True, "kept": True},
    {**MODERN, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 32, "kept": True},
    {"head": "sentence"},
    {**MODERN, "head": "sentence"},
    {**MODERN, "head": "token"},
    {"relative_buckets": "none", "share_decoder_positions": True},
]


class Losses(nn.Module):
    """The loss of a batch, of masked tokens or of a head."""

    def __init__(self, variant: dict[str, Any], rank: int) -> None:
        super().__init__()
        changes = {name: value for name, value in variant.items() if name not in ("kept", "recompute", "head")}
        self.head = variant.get("head")
        self.model: MaelmModel = model_of(dropout=0.1, attention_dropout=0.1, **changes)
        if self.head is not None:
            dictionary = self.model.encoder.dictionary
            self.model = MaelmModel(model_config(**changes), dictionary, predicts_masked_tokens=False)
            sentence = self.head == "sentence"
            (self.model.register_classification_head if sentence else self.model.register_token_head)("head", 2)
        execute(self.model.train(), compiles=False, recomputes=variant.get("recompute", False))
        lengths = [9 + rank, 12]
        sequences = random_sequences(lengths, seed=rank)
        self.net_input, self.target = batch_of(sequences, [[2, 3], [5]], 39 if variant.get("kept") else None)
        self.tokens = torch.from_numpy(pad_rows(sequences, np.array(lengths), 1))
        if variant.get("decoder_attention") == "causal_cross":  # which predicts every token
            slots = self.tokens.ne(1).flatten().nonzero().flatten()
            everything = {
                "predicted_slots": slots,
                "padded_outputs": slots,
                "output_length": 12,
                "full_tokens": self.tokens,
            }
            self.net_input["layout"].update(everything)
            self.target = self.tokens.flatten()[slots]

    def forward(self) -> torch.Tensor:
        """Return the sum over the batch."""
        if self.head is None:
            return self.model(**self.net_input, target=self.target)[0]
        scores, _ = self.model(self.tokens, features_only=True, classification_head_name="head")
        return F.cross_entropy(scores.flatten(0, -2), torch.zeros(scores.shape[:-1], dtype=torch.int64).flatten())


def work(rank: int, port: int) -> None:
    """One rank: three steps of every variant; in the second it does not exchange, in the third it has no batch."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    for number, variant in enumerate(VARIANTS):
        options = {"find_unused_parameters": False, "gradient_as_bucket_view": bool(number % 2)}
        parallel = DistributedDataParallel(Losses(variant, rank), **options)
        parallel().backward()
        with parallel.no_sync():
            parallel().backward()
        (parallel() * (1.0 - rank)).backward()
        for name, parameter in parallel.named_parameters():
            assert parameter.grad is not None, (variant, name)
            others = [torch.empty_like(parameter.grad) for _ in range(RANKS)]
            dist.all_gather(others, parameter.grad)
            assert torch.equal(*others), (variant, name)
    dist.barrier()  # Gloo aborts a rank whose peer is gone too early.
    dist.destroy_process_group()
    os._exit(0)  # A thread of torch's that still runs when Python ends can abort the rank.


def test_every_variant_trains_on_two_ranks_without_unused_parameters() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port,), nprocs=RANKS)
