"""Embeddings of texts by a checkpoint that the hub interface has opened."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.retrieval.pooling import POOLINGS, SIMILARITIES, cut, embed_states
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.text.cleaning import checked_texts, clean_text

__all__ = ["EmbeddingSettings", "embed", "embedding_settings", "encode_text"]


class EmbeddingSettings(NamedTuple):
    """The settings of embeddings."""

    pooling: str  # one of ``POOLINGS``; see ``embed_states``
    similarity: str  # one of ``SIMILARITIES``; "cosine" normalizes embeddings to length 1
    max_length: int  # number of tokens to which longer texts are cut, <s> and </s> included


def embedding_settings(hub: MaelmHubInterface, **changes: Any) -> EmbeddingSettings:
    """Return the settings of a checkpoint's training for retrieval, or else mean, cosine and all positions.

    Args:
        hub: a checkpoint of any task.
        changes: values of ``pooling``, ``similarity`` and ``max_length`` that override them, unless None.

    Raises:
        ValueError: a value is not valid.
    """
    positions, task = hub.model.max_positions(), hub.config.task
    settings = EmbeddingSettings("mean", "cosine", positions)
    if getattr(task, "pooling", None) is not None and getattr(task, "similarity", None) is not None:
        limit = min(int(task.tokens_per_sample), positions)
        settings = EmbeddingSettings(str(task.pooling), str(task.similarity), limit)
    settings = settings._replace(**{name: value for name, value in changes.items() if value is not None})
    for name, known in (("pooling", POOLINGS), ("similarity", SIMILARITIES)):
        if getattr(settings, name) not in known:
            raise ValueError(f"unknown {name} {getattr(settings, name)!r}: choose one of {', '.join(known)}")
    if not 3 <= settings.max_length <= positions:
        raise ValueError(
            f"--max-length must be between 3 (a token between <s> and </s>) and {positions} (the model's positions), "
            f"not {settings.max_length}"
        )
    return settings


def embed(hub: MaelmHubInterface, texts: Sequence[str], batch_tokens: int = 16_384, **changes: Any) -> Tensor:
    """Embed texts, which may be queries or documents.

    Args:
        hub: a checkpoint of any task.
        texts: the texts; long ones are cut to ``max_length``.
        batch_tokens: number of tokens in a batch, padding included.
        changes: as in ``embedding_settings``.

    Returns:
        <float32>[texts, D] on the CPU; with "cosine" of length 1, so that dot products are cosines.
    """
    settings, pad = embedding_settings(hub, **changes), hub.dictionary.pad()
    sequences = [encode_text(hub, text, settings.max_length) for text in checked_texts(texts)]
    lengths = np.array([len(sequence) for sequence in sequences])

    def collate(places: Places) -> Tensor:
        return torch.from_numpy(pad_rows([sequences[place] for place in places], lengths[places], pad))

    def forward(tokens: Tensor) -> Tensor:
        states, _ = hub.model(tokens, features_only=True)
        return embed_states(states, tokens.eq(pad), settings.pooling, settings.similarity).cpu()

    rows = predict(hub.model, lengths, collate, forward, batch_tokens)
    return torch.stack(rows) if rows else torch.empty(0, hub.model.encoder.embed_tokens.weight.shape[1])


def encode_text(hub: MaelmHubInterface, text: str, max_length: int) -> np.ndarray:
    """Clean and tokenize a text into <int64>[n] with <s> and </s>, cut to ``max_length`` tokens."""
    return cut(hub.tokenizer.encode(clean_text(text)), hub.dictionary, max_length)
