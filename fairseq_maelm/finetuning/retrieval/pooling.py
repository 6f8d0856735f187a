"""From an encoder's states to one embedding of a text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.predicting import predict

POOLINGS = ("mean", "first")
SIMILARITIES = ("cosine", "dot")


class EmbeddingSettings(NamedTuple):
    """What turns a text into an embedding, beside the encoder.

    Attributes:
        pooling: one of ``POOLINGS``; see ``pool``.
        similarity: one of ``SIMILARITIES``; embeddings that are compared by their cosine have length 1.
        max_tokens: longer texts are cut; <s> and </s> counted.
    """

    pooling: str
    similarity: str
    max_tokens: int


def embedding_settings(task_config: Any, positions: int, **changes: Any) -> EmbeddingSettings:
    """The settings that a checkpoint's task was trained with, but for what is given.

    Checkpoints of other tasks have none and get the mean of all tokens, compared by cosine, of texts as long as the
    model allows.

    Args:
        task_config: a checkpoint's ``cfg.task``.
        positions: the longest sequence that the model takes.
        changes: ``pooling``, ``similarity``, ``max_tokens``; None changes nothing.
    """
    settings = EmbeddingSettings("mean", "cosine", positions)
    if getattr(task_config, "pooling", None) is not None and getattr(task_config, "similarity", None) is not None:
        limit = min(int(task_config.tokens_per_sample), positions)
        settings = EmbeddingSettings(str(task_config.pooling), str(task_config.similarity), limit)
    settings = settings._replace(**{name: value for name, value in changes.items() if value is not None})
    for name, known in (("pooling", POOLINGS), ("similarity", SIMILARITIES)):
        if getattr(settings, name) not in known:
            raise ValueError(f"unknown {name} {getattr(settings, name)!r}: choose one of {', '.join(known)}")
    if not 3 <= settings.max_tokens <= positions:
        raise ValueError(
            f"texts can be cut to between 3 tokens, one of them between <s> and </s>, and the {positions} positions of "
            f"the model, not to {settings.max_tokens}"
        )
    return settings


def pool(states: Tensor, padding: Tensor, pooling: str) -> Tensor:
    """One vector for each sequence.

    Args:
        states: <float>[B, S, D] the encoder's last states.
        padding: <bool>[B, S] True at padding, which never counts.
        pooling: "mean" of the states of all tokens, <s> and </s> among them, as in Sentence-BERT (Reimers and
            Gurevych, 2019, section 3); or "first", the state of <s>.

    Returns:
        <float32>[B, D].
    """
    if pooling == "first":
        return states[:, 0].float()
    kept = states.float().masked_fill(padding[:, :, None], 0.0)
    return kept.sum(dim=1) / (~padding).sum(dim=1, keepdim=True)


def embed_states(states: Tensor, padding: Tensor, pooling: str, similarity: str) -> Tensor:
    """``pool``, and to length 1 if embeddings are compared by their cosine: <float32>[B, D]."""
    pooled = pool(states, padding, pooling)
    return F.normalize(pooled, dim=-1) if similarity == "cosine" else pooled


def cut(tokens: Sequence[int], begin: int, end: int, max_tokens: int) -> np.ndarray:
    """Put a text between its special symbols.

    Args:
        tokens: of the text alone.
        begin: the symbol <s>.
        end: the symbol </s>.
        max_tokens: of the result; the text is cut at its end.

    Returns:
        <int64>[n] with n at most ``max_tokens``.
    """
    inside = np.asarray(tokens[: max_tokens - 2], dtype=np.int64)
    return np.concatenate([[begin], inside, [end]]).astype(np.int64)


def embed_sequences(
    model: Any, sequences: Sequence[np.ndarray], pad: int, settings: EmbeddingSettings, batch_tokens: int
) -> Tensor:
    """Embed texts in batches of near-equal length.

    Args:
        model: a ``MaelmModel``.
        sequences: <int64>[n] tokens of each text with <s> and </s>.
        pad: the padding symbol.
        settings: pooling and similarity.
        batch_tokens: slots of a batch, padding counted.

    Returns:
        <float32>[texts, D] on the CPU, in the order of the sequences.
    """
    lengths = np.array([len(sequence) for sequence in sequences])

    def collate(places: np.ndarray) -> Tensor:
        return torch.from_numpy(pad_rows([sequences[place] for place in places], lengths[places], pad))

    def run(tokens: Tensor) -> Tensor:
        states, _ = model(tokens, features_only=True)
        return embed_states(states, tokens.eq(pad), settings.pooling, settings.similarity).cpu()

    rows = predict(model, lengths, collate, run, batch_tokens)
    return torch.stack(rows) if rows else torch.empty(0, model.encoder.embed_tokens.weight.shape[1])
