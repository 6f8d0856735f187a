"""The hub interface's embeddings of texts, for retrieval and whatever else compares texts."""

from typing import Any, Optional, Sequence

import numpy as np
from torch import Tensor

from fairseq_maelm.finetuning.retrieval.pooling import (
    EmbeddingSettings,
    check_settings,
    cut,
    embed_sequences,
    embedding_settings,
)
from fairseq_maelm.text.cleaning import clean_text


class EmbedsTexts:
    """Methods of the hub interface; see there for its attributes."""

    config: Any
    model: Any
    tokenizer: Any
    dictionary: Any

    def embedding_settings(
        self, pooling: Optional[str] = None, similarity: Optional[str] = None, max_tokens: Optional[int] = None
    ) -> EmbeddingSettings:
        """What turns texts into embeddings: as the checkpoint was trained for retrieval, but for what is given.

        Raises:
            ValueError: if a value is not possible.
        """
        positions = self.model.max_positions()
        own = embedding_settings(self.config.task, positions)
        settings = EmbeddingSettings(
            own.pooling if pooling is None else pooling,
            own.similarity if similarity is None else similarity,
            own.max_tokens if max_tokens is None else max_tokens,
        )
        check_settings(settings, positions)
        return settings

    def embed(self, texts: Sequence[str], batch_tokens: int = 16_384, **changes: Any) -> Tensor:
        """Embed texts, queries and documents alike.

        Args:
            texts: longer ones than the settings allow are cut.
            batch_tokens: slots of a batch, padding counted.
            changes: ``pooling``, ``similarity`` or ``max_tokens`` in place of the checkpoint's; see
                ``embedding_settings``. Checkpoints of other tasks than retrieval get "mean" and "cosine".

        Returns:
            <float32>[texts, D] on the CPU; of length 1 for the cosine, so that products are cosines.
        """
        if isinstance(texts, str):
            raise ValueError("embed takes a list of texts: put the one text into a list")
        settings = self.embedding_settings(**changes)
        sequences = [self.encode_text(text, settings.max_tokens) for text in texts]
        return self.embed_sequences(sequences, settings, batch_tokens)

    def encode_text(self, text: str, max_tokens: int) -> np.ndarray:
        """Clean a text and turn it into <int64>[n], cut to ``max_tokens`` with <s> and </s>."""
        tokens = self.tokenizer.encode(clean_text(text))
        return cut(tokens, self.dictionary.bos(), self.dictionary.eos(), max_tokens)

    def embed_sequences(
        self, sequences: Sequence[np.ndarray], settings: EmbeddingSettings, batch_tokens: int
    ) -> Tensor:
        """``embed`` for texts that are tokens already; see ``finetuning.retrieval.pooling.embed_sequences``."""
        training = self.model.training
        self.model.eval()
        try:
            return embed_sequences(self.model, sequences, self.dictionary.pad(), settings, batch_tokens)
        finally:
            self.model.train(training)
