"""Encoders from Hugging Face folders: BERT, RoBERTa, MPNet, ModernBERT, and models with the same attribute names."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_maelm.analysis.encoders import Vocabulary
from fairseq_maelm.analysis.theorem import AttentionWeights, attention_weights
from fairseq_maelm.batch import pad_rows


class HuggingFaceEncoder:
    """The encoder of a masked language model in a local folder; see ``fairseq_maelm.analysis.encoders``.

    Nothing is downloaded and no code of the folder is run. With ``random_seed`` the model gets random weights.

    Raises:
        ValueError: transformers is missing or cannot read the folder, or the tokenizer has no mask token.
    """

    def __init__(self, path: Path, random_seed: int | None = None) -> None:
        from fairseq_maelm.hf import longest_sequence, open_pretrained  # imports transformers

        tokenizer, model = open_pretrained("AutoTokenizer", path), open_pretrained("AutoModel", path)
        self._tokenizer, config = tokenizer, model.config
        self._path, self._seed = path, random_seed
        self._model = self._ready(model)
        self.vocabulary = _vocabulary(tokenizer, config, path)
        self.num_layers = int(config.num_hidden_layers)
        self.num_heads = int(config.num_attention_heads)
        self.width = int(config.hidden_size)
        self.max_length = longest_sequence(tokenizer, config)
        self.kind = "mlm"
        self.settings = {"source": "Hugging Face", "architecture": str(config.model_type)}

    def _ready(self, model: Any) -> Any:
        if self._seed is not None:
            torch.manual_seed(self._seed)
            model = type(model)(model.config)
        return model.eval().float()

    def to(self, device: str) -> "HuggingFaceEncoder":
        """Move the model to a device."""
        self._model.to(device)
        return self

    def hidden_states(self, tokens: Tensor, positions: Tensor | None = None) -> Sequence[Tensor]:
        """Return the states of all layers; see ``fairseq_maelm.analysis.encoders``. Positions must be None."""
        if positions is not None:
            raise ValueError("masked tokens cannot be dropped from the input of a Hugging Face model")
        attention_mask = tokens.ne(self.vocabulary.pad)
        output = self._model(input_ids=tokens, attention_mask=attention_mask.long(), output_hidden_states=True)
        # ModernBERT of transformers 4 lists its last layer's state from before the final normalization.
        return (*output.hidden_states[:-1], output.last_hidden_state)

    @cached_property
    def _masked_model(self) -> Any:
        from fairseq_maelm.hf import open_pretrained

        # transformers would give a model without an LM head a random one.
        if not any("MaskedLM" in name for name in self._model.config.architectures or ()):
            return None
        return self._ready(open_pretrained("AutoModelForMaskedLM", self._path)).to(self._model.device)

    def masked_logits(self, sequences: list[np.ndarray]) -> Tensor | None:
        """Return the LM head's logits at masks; see ``fairseq_maelm.analysis.encoders``."""
        if self._masked_model is None:
            return None
        lengths = np.array([len(sequence) for sequence in sequences])
        tokens = torch.from_numpy(pad_rows(sequences, lengths, self.vocabulary.pad)).to(self._model.device)
        with torch.no_grad():
            logits = self._masked_model(tokens, attention_mask=tokens.ne(self.vocabulary.pad).long()).logits
        return logits[tokens == self.vocabulary.mask]

    def encode_line(self, line: str) -> list[int]:
        """Return the tokens of a line of text; special symbols that it happens to spell are left out."""
        tokens = self._tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        return [token for token in tokens if token == unknown or not self.vocabulary.special[token]]

    def check_data(self, folder: Path) -> None:
        """Refuse prepared data, whose tokens are those of a fairseq dictionary."""
        raise ValueError(
            f"the tokens in {folder} are not those of a Hugging Face model: give --text, a text file that each model "
            "tokenizes for itself"
        )

    def attention_weights(self) -> Iterator[AttentionWeights] | None:
        """Return the attention weights of each layer, or None if their names are unknown."""
        layers = next((part for name, part in self._model.named_modules() if name in ("encoder.layer", "layers")), None)
        if not isinstance(layers, nn.ModuleList):
            return None
        found = [_projections(dict(layer.named_modules())) for layer in layers]
        return (_split(each, self.num_heads) for each in found if each) if all(found) else None


def _vocabulary(tokenizer: Any, config: Any, path: Path) -> Vocabulary:
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if None in (tokenizer.mask_token_id, tokenizer.pad_token_id, first, last):
        raise ValueError(
            f"the tokenizer in {path} is not that of a masked language model: it lacks a mask, padding, first or last "
            "symbol"
        )
    special = np.zeros(int(config.vocab_size), dtype=bool)
    special[[token for token in tokenizer.all_special_ids if token < len(special)]] = True
    # Rows behind the tokenizer's last token only pad the embedding table to a round size.
    special[len(tokenizer) :] = True
    return Vocabulary(
        size=len(special),
        pad=tokenizer.pad_token_id,
        mask=tokenizer.mask_token_id,
        first=first,
        last=last,
        line_end=None,
        special=special,
        masks_special=False,
    )


def _projections(parts: dict[str, Any]) -> list[Tensor] | None:
    """Find the weights [out, in] of query, key, value and output by the names in the known families."""
    for names in (
        ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
        ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"),
    ):
        if all(name in parts for name in names):
            return [parts[name].weight for name in names]
    if "attn.Wqkv" in parts and "attn.Wo" in parts:
        return [*parts["attn.Wqkv"].weight.chunk(3), parts["attn.Wo"].weight]
    return None


def _split(projections: list[Tensor], heads: int) -> AttentionWeights:
    *inputs, output = projections
    query, key, value = (weight.unflatten(0, (heads, -1)).transpose(-1, -2) for weight in inputs)
    return attention_weights(query, key, value, torch.stack(output.chunk(heads, dim=1)).transpose(-1, -2))
