"""Embeddings of texts by a checkpoint behind the hub interface, for retrieval and whatever else compares texts."""

from typing import Any, Sequence

import numpy as np
from torch import Tensor

from fairseq_maelm.finetuning.retrieval import pooling as pools
from fairseq_maelm.finetuning.retrieval.pooling import EmbeddingSettings, cut
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.text.cleaning import clean_text

__all__ = ["embed", "embedding_settings", "encode_text"]


def embedding_settings(hub: MaelmHubInterface, **changes: Any) -> EmbeddingSettings:
    """What turns texts into embeddings: as the checkpoint was trained for retrieval, but for what is given.

    Raises:
        ValueError: if a value is not possible.
    """
    return pools.embedding_settings(hub.config.task, hub.model.max_positions(), **changes)


def embed(hub: MaelmHubInterface, texts: Sequence[str], batch_tokens: int = 16_384, **changes: Any) -> Tensor:
    """Embed texts, queries and documents alike.

    Args:
        hub: of a checkpoint of any task.
        texts: longer ones than the settings allow are cut.
        batch_tokens: slots of a batch, padding counted.
        changes: ``pooling``, ``similarity`` or ``max_tokens`` in place of the checkpoint's; see
            ``embedding_settings``. Checkpoints of other tasks than retrieval get "mean" and "cosine".

    Returns:
        <float32>[texts, D] on the CPU; of length 1 for the cosine, so that products are cosines.
    """
    if isinstance(texts, str):
        raise ValueError("embed takes a list of texts: put the one text into a list")
    settings = embedding_settings(hub, **changes)
    sequences = [encode_text(hub, text, settings.max_tokens) for text in texts]
    return pools.embed_sequences(hub.model, sequences, hub.dictionary.pad(), settings, batch_tokens)


def encode_text(hub: MaelmHubInterface, text: str, max_tokens: int) -> np.ndarray:
    """Clean a text and turn it into <int64>[n], cut to ``max_tokens`` with <s> and </s>."""
    tokens = hub.tokenizer.encode(clean_text(text))
    return cut(tokens, hub.dictionary.bos(), hub.dictionary.eos(), max_tokens)
