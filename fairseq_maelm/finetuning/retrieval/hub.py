"""Embeddings of texts by a checkpoint behind the hub interface, for retrieval and whatever else compares texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.finetuning.retrieval.pooling import POOLINGS, SIMILARITIES, cut, embed_states
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.models.predicting import Places, predict
from fairseq_maelm.text.cleaning import checked_texts, clean_text

__all__ = ["EmbeddingSettings", "embed", "embedding_settings", "encode_text"]


class EmbeddingSettings(NamedTuple):
    """How a text becomes an embedding.

    Attributes:
        pooling: one of ``POOLINGS``; see ``embed_states``.
        similarity: one of ``SIMILARITIES``; embeddings that are compared by their cosine have length 1.
        max_length: longer texts are cut to so many tokens, <s> and </s> counted.
    """

    pooling: str
    similarity: str
    max_length: int


def embedding_settings(hub: MaelmHubInterface, **changes: Any) -> EmbeddingSettings:
    """Return the settings that a checkpoint was trained with for retrieval, or else mean, cosine and all positions.

    Args:
        hub: of a checkpoint of any task.
        changes: ``pooling``, ``similarity``, ``max_length`` in place of these; None changes nothing.

    Raises:
        ValueError: a value is not possible.
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
            f"--max-length must be between 3, a token between <s> and </s>, and {positions}, the positions of the "
            f"model, not {settings.max_length}"
        )
    return settings


def embed(hub: MaelmHubInterface, texts: Sequence[str], batch_tokens: int = 16_384, **changes: Any) -> Tensor:
    """Embed texts, queries and documents alike.

    Args:
        hub: of a checkpoint of any task.
        texts: longer ones than the settings allow are cut.
        batch_tokens: number of tokens in a batch, padding counted.
        changes: see ``embedding_settings``.

    Returns:
        <float32>[texts, D] on the CPU; of length 1 for the cosine, so that products are cosines.
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
    """Clean a text and turn it into <int64>[n], cut to ``max_length`` with <s> and </s>."""
    return cut(hub.tokenizer.encode(clean_text(text)), hub.dictionary, max_length)
