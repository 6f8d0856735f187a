"""Encoders from this package's checkpoints, pretrained or fine-tuned, of every variant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairseq_maelm.analysis.theorem import AttentionWeights, attention_weights
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.models.build import build_model
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.dictionary import MASK, load_dictionary, special_tokens
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer

# Options of the pretraining task that determine the encoder's input.
_TASK_OPTIONS = (
    *("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "mask_prob_end"),
    *("leave_unmasked_prob", "random_token_prob", "mask_whole_words", "protect_special_tokens"),
)


@dataclass(frozen=True)
class Vocabulary:
    """The special symbols, and how pretraining treated them."""

    pad: int
    mask: int
    first: int  # put before every sequence
    line_end: int  # put after every line of text
    special: np.ndarray  # <bool>[V] True for symbols that are not text
    masks_special: bool  # whether special symbols may be masked
    consecutive_positions: bool = False  # whether positions are consecutive after masked tokens are dropped


class CheckpointEncoder:
    """A checkpoint's encoder, which returns the states of all layers.

    Attributes:
        vocabulary: the special symbols.
        num_layers: L.
        num_heads: H.
        width: D.
        max_length: maximum number of tokens in a sequence, special symbols included.
        kind: "mlm" if the encoder saw <mask> in pretraining, "maelm" if not, or "fine-tuned".
        settings: facts to record in the results.

    Args:
        path: the checkpoint file.
        vocabulary: folder of the dictionary and tokenizer, if they are not in the checkpoint's folder.

    Raises:
        FileNotFoundError: there is no dictionary.
        ValueError: the checkpoint is not of the model maelm, or was trained with another dictionary.
    """

    def __init__(self, path: Path, vocabulary: Path | None) -> None:
        self._folder = find_dictionary([path.parent, *([] if vocabulary is None else [vocabulary])])
        self._dictionary = dictionary = load_dictionary(str(self._folder))
        checkpoint = read_checkpoint(path)
        task, size, self._view = checkpoint.config.task, checkpoint.config.model, checkpoint.view
        self._model = build_model(checkpoint, dictionary)
        self.vocabulary = Vocabulary(
            pad=dictionary.pad(),
            mask=dictionary.index(MASK),
            first=dictionary.bos(),
            line_end=dictionary.eos(),
            special=special_tokens(dictionary),
            masks_special=not getattr(task, "protect_special_tokens", False),
            consecutive_positions=self._view.positions == "consecutive",
        )
        self.num_layers = len(self._model.encoder.layers)
        self.num_heads = int(size.encoder_attention_heads)
        self.width = int(size.encoder_embed_dim)
        self.max_length = self._model.max_positions()
        # A mask fraction (delta) above 0 keeps some masks in the input.
        sees_masks = self._view.masked_input in ("kept", "reset") or self._view.mask_fraction > 0.0
        self.kind = "mlm" if sees_masks else "maelm"
        if not checkpoint.predicts_masked_tokens:
            self.kind = "fine-tuned"
        said = {option: task[option] for option in _TASK_OPTIONS if option in task}
        self.settings: dict[str, Any] = {"source": "fairseq checkpoint", "architecture": str(size._name), **said}

    def to(self, device: str) -> "CheckpointEncoder":
        """Move the model to a device."""
        self._model.to(device)
        return self

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Return L + 1 tensors <float>[B, S, D]: the embeddings and each layer's output.

        Tokens <int64>[B, S] are padded on the right; their positions <int64>[B, S] are 0, 1, 2, ... by default.
        """
        return self._model.encoder(tokens, positions).all_states

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return open_tokenizer(find_tokenizer([self._folder]), self._dictionary)

    def encode_line(self, line: str) -> list[int]:
        """Tokenize a line of text, and drop any <mask>."""
        return [token for token in self._tokenizer.encode(line) if token != self.vocabulary.mask]

    def check_data(self, folder: Path) -> None:
        """Refuse data that were prepared with another dictionary."""
        if load_dictionary(str(folder)).symbols != self._dictionary.symbols:
            raise ValueError(
                f"the data in {folder} were prepared with a dictionary other than the model's: instead of --data give "
                "--text, a text file that each model tokenizes itself"
            )

    def attention_weights(self) -> Iterator[AttentionWeights]:
        """Yield each layer's attention projections."""
        for layer in self._model.encoder.layers:
            attention = layer.self_attn
            heads, width = attention.num_heads, self.width
            # The weight is [3 H d_h, D].
            query, key, value = attention.qkv_proj.weight.view(3, heads, width // heads, width).transpose(-1, -2)
            output = attention.out_proj.weight.view(width, heads, width // heads).permute(1, 2, 0)
            yield attention_weights(query, key, value, output)


def chosen_layers(name: str, encoder: CheckpointEncoder, layers: Sequence[int] | None) -> list[int]:
    """Return a model's chosen layers, sorted; by default all. Raise a ValueError for a layer out of range."""
    for layer in layers or ():
        if not 0 <= layer <= encoder.num_layers:
            raise ValueError(f"{name} has no layer {layer}: its layers are 0 (embeddings) to {encoder.num_layers}")
    return list(range(encoder.num_layers + 1)) if layers is None else sorted(set(layers))
