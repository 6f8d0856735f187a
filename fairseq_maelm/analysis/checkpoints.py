"""Encoders from this package's checkpoints, pretrained or fine-tuned, of every variant."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import utils
from torch import Tensor

from fairseq_maelm.analysis.encoders import Vocabulary
from fairseq_maelm.analysis.theorem import AttentionWeights, attention_weights
from fairseq_maelm.models.checkpoint_model import build_model
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.masked_tokens import masked_token_logits
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.dictionary import MASK, load_dictionary, special_tokens
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer

# What the task's options, as the checkpoint holds them, say about the encoder's input in pretraining.
_TASK_OPTIONS = (
    *("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "mask_prob_end"),
    *("leave_unmasked_prob", "random_token_prob", "mask_whole_words", "protect_special_tokens"),
)


class CheckpointEncoder:
    """The encoder of a fairseq checkpoint; see ``fairseq_maelm.analysis.encoders``.

    Args:
        path: of the checkpoint.
        vocabulary: folder of its dictionary and tokenizer, where they are not in the checkpoint's own.
        random_seed: of random weights in place of the checkpoint's, as before its pretraining.

    Raises:
        FileNotFoundError: there is no dictionary.
        ValueError: the checkpoint is not of the model maelm, or belongs to another dictionary.
    """

    def __init__(self, path: Path, vocabulary: Path | None, random_seed: int | None = None) -> None:
        self._folder = str(find_dictionary([path.parent, *([] if vocabulary is None else [vocabulary])]))
        self._dictionary = dictionary = load_dictionary(self._folder)
        checkpoint = read_checkpoint(path)
        task, size, self._view = checkpoint.config.task, checkpoint.config.model, checkpoint.view
        if random_seed is None:
            self._model = build_model(checkpoint, dictionary)
        else:
            utils.set_torch_seed(random_seed)
            self._model = MaelmModel(size, dictionary, checkpoint.predicts_masked_tokens).float().eval()
        self.vocabulary = Vocabulary(
            size=len(dictionary),
            pad=dictionary.pad(),
            mask=dictionary.index(MASK),
            first=dictionary.bos(),
            last=None,
            line_end=dictionary.eos(),
            special=special_tokens(dictionary),
            masks_special=not getattr(task, "protect_special_tokens", False),
            consecutive_positions=self._view.positions == "consecutive",
        )
        self.num_layers = len(self._model.encoder.layers)
        self.num_heads = int(size.encoder_attention_heads)
        self.width = int(size.encoder_embed_dim)
        self.max_length = self._model.max_positions()
        # A delta above 0 keeps some masks although "dropped" is the rule.
        sees_masks = self._view.masked_input in ("kept", "reset") or self._view.mask_fraction > 0.0
        self.kind = "mlm" if sees_masks else "maelm"
        if not checkpoint.predicts_masked_tokens:
            self.kind = "fine-tuned"
        said = {option: task[option] for option in _TASK_OPTIONS if option in task}
        self.settings: dict[str, Any] = {"source": "fairseq checkpoint", "architecture": str(size._name), **said}

    def to(self, device: str) -> "CheckpointEncoder":
        """Move the model."""
        self._model.to(device)
        return self

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Encode; see ``fairseq_maelm.analysis.encoders``."""
        return self._model.encoder(tokens, positions).all_states

    def masked_logits(self, sequences: list[np.ndarray]) -> Tensor | None:
        """Score masks with the decoder, as in pretraining; see ``fairseq_maelm.analysis.encoders``."""
        decoder = self._model.decoder
        if self._model.lm_head is None or (decoder is not None and decoder.autoregressive):
            return None
        return masked_token_logits(self._model, self._view, sequences)

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return open_tokenizer(find_tokenizer(self._folder, self._folder), self._dictionary)

    def encode_line(self, line: str) -> list[int]:
        """Return the tokens of a line of text; <mask> in it is ordinary text."""
        return [token for token in self._tokenizer.encode(line) if token != self.vocabulary.mask]

    def check_data(self, folder: Path) -> None:
        """Refuse another dictionary's data."""
        if load_dictionary(str(folder)).symbols != self._dictionary.symbols:
            raise ValueError(
                f"the data in {folder} were prepared with another dictionary than the model's: analyze a text file "
                "with --text, which each model encodes by itself"
            )

    def attention_weights(self) -> Iterator[AttentionWeights]:
        """Yield the weights of each layer's attention."""
        for layer in self._model.encoder.layers:
            attention = layer.self_attn
            heads, width = attention.num_heads, self.width
            # Rows of the weight are outputs, three times heads times d_h of them.
            query, key, value = attention.qkv_proj.weight.view(3, heads, width // heads, width).transpose(-1, -2)
            output = attention.out_proj.weight.view(width, heads, width // heads).permute(1, 2, 0)
            yield attention_weights(query, key, value, output)
