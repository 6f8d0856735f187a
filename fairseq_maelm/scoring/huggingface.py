"""Scores of sentences by Hugging Face masked language models: BERT, RoBERTa, ModernBERT, exports of this package."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairseq_maelm.hf import longest_sequence, open_pretrained
from fairseq_maelm.scoring.likelihood import Sentence

# The first module of the LM head in the known families. Its input is reduced to the places to score.
_HEADS = ("lm_head", "cls", "head", "predictions", "lm_predictions", "vocab_transform", "generator_predictions")


class HuggingFaceScorer:
    """A masked language model in a local folder; see ``fairseq_maelm.scoring.likelihood.Scorer``.

    Nothing is downloaded and no code of the folder is run.

    Raises:
        ValueError: transformers is missing or cannot read the folder, or the model cannot predict masks.
    """

    def __init__(self, path: Path, precision: str, device: str) -> None:
        self._tokenizer = tokenizer = open_pretrained("AutoTokenizer", path)
        model, report = open_pretrained("AutoModelForMaskedLM", path, output_loading_info=True)
        if report["missing_keys"] or model.config.is_encoder_decoder:
            lacks = ", ".join(sorted(report["missing_keys"])[:3]) or "an encoder alone"
            raise ValueError(f"{path} is not a masked language model: its weights lack {lacks}")
        if None in (tokenizer.mask_token_id, tokenizer.pad_token_id):
            raise ValueError(
                f"the tokenizer in {path} is not that of a masked language model: it lacks mask or padding"
            )
        self.model: nn.Module = model.eval().float().to(device)
        self.mask, self.pad = int(tokenizer.mask_token_id), int(tokenizer.pad_token_id)
        self.longest = longest_sequence(tokenizer, model.config)
        self.precision = precision
        head = next((part for name, part in model.named_children() if name in _HEADS), None)
        self._asked: Tensor | None = None
        if head is not None:
            head.register_forward_pre_hook(lambda module, inputs: (self._take(inputs[0]), *inputs[1:]))

    def _take(self, states: Tensor) -> Tensor:
        assert self._asked is not None
        # A model that removes padding from its batch has states of another shape.
        return states[self._asked] if states.shape[:2] == self._asked.shape else states

    def encode(self, texts: Sequence[str], with_words: bool) -> list[Sentence]:
        """See ``Scorer``. Words are those of the tokenizer.

        Raises:
            ValueError: words are needed, but the tokenizer has no tokenizer.json and cannot return them.
        """
        if not self._tokenizer.is_fast:
            if with_words:
                raise ValueError("within_word_l2r needs a tokenizer with a tokenizer.json, which can return words")
            return [self._sentence(text) for text in texts]
        # The text of a special symbol, such as [SEP], is ordinary text.
        encoded = self._tokenizer(list(texts), split_special_tokens=True, verbose=False)
        return [
            Sentence(
                np.array(encoded["input_ids"][row], dtype=np.int64),
                np.array([-1 if word is None else word for word in encoded.word_ids(row)], dtype=np.int64),
            )
            for row in range(len(texts))
        ]

    def _sentence(self, text: str) -> Sentence:
        encoded = self._tokenizer(text, return_special_tokens_mask=True, verbose=False)
        special = np.array(encoded["special_tokens_mask"], dtype=bool)
        return Sentence(np.array(encoded["input_ids"], dtype=np.int64), np.where(special, -1, np.arange(len(special))))

    def collate(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], asked: NDArray[np.bool_]
    ) -> dict[str, Tensor]:
        """See ``Scorer``."""
        inside = np.arange(tokens.shape[1])[None, :] < lengths[:, None]
        return {
            "input_ids": torch.from_numpy(tokens),
            "attention_mask": torch.from_numpy(inside.astype(np.int64)),
            "asked": torch.from_numpy(asked),
        }

    def log_probabilities(self, batch: dict[str, Tensor], target: Tensor) -> Tensor:
        """See ``Scorer``."""
        self._asked = asked = batch.pop("asked")
        logits: Any = self.model(**batch).logits
        # [B, V] if the head was found, otherwise [B, T, V].
        logits = (logits[asked] if logits.dim() == 3 else logits).float()
        return logits.gather(1, target) - logits.logsumexp(dim=1, keepdim=True)
