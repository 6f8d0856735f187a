"""The file that lets an export restore the ids, files and unused weights of an imported source.

``SOURCE_FILE`` is next to dict.txt and, like all vocabulary files, is copied to prepared data and save folders. Its
tensors are: ``order`` <int64>[V], the map from our ids to the source's; ``vocabulary``, the fingerprint of our
dictionary; ``file:NAME`` <uint8>[bytes], the content of a file; ``weight:NAME``, a weight of the encoder that our model
lacks or stores in another form; and ``head:NAME``, a weight of a head that our model lacks.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.architecture.families import FAMILIES, Family
from fairseq_maelm.files.atomic import parse_json, read_regular
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, SOURCE_FILE, TOKENIZER_FILE

CONFIG_FILE = "config.json"
# What an export says about the source: its name, kind and checksums, and its own model card.
FACTS_FILE, SOURCE_CARD = "source.json", "README.md"
# The files of tokenizers and of sentence-transformers, of which a source has some. No other file of a source is kept.
_MODULES, _SENTENCE_CONFIG = "modules.json", "sentence_bert_config.json"
_SENTENCE_ENCODER_FILES = (_MODULES, _SENTENCE_CONFIG, "config_sentence_transformers.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_OTHER_FILES = (
    *(TOKENIZER_FILE, _TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", MODEL_FILE, "spiece.model"),
    *_SENTENCE_ENCODER_FILES,
)
# sentence-transformers keeps its modules after the encoder in folders such as 1_Pooling and 2_Dense.
_MODULE_FILE = re.compile(r"[1-9]\d*_[A-Za-z]+/(config\.json|model\.safetensors|pytorch_model\.bin)")
POSITIONS, _TOKEN_TYPES = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
_POOLER = ("pooler.dense.weight", "pooler.dense.bias")
# Weights that our model lacks or stores in another form: our position table includes token type 0 and begins at row 0.
_KEPT_WEIGHTS = (POSITIONS, _TOKEN_TYPES, *_POOLER)


@dataclass(frozen=True)
class SourceFiles:
    """The part of an imported source that our checkpoint lacks: files, ids and weights."""

    order: Tensor  # <int64>[V] map from our ids to the source's ids
    vocabulary: int  # the fingerprint of our dictionary
    files: dict[str, bytes] = field(default_factory=dict)  # config.json, and the tokenizer's files
    weights: dict[str, Tensor] = field(default_factory=dict)  # under the source's names without prefix
    heads: dict[str, Tensor] = field(default_factory=dict)  # under the source's names

    @property
    def config(self) -> dict[str, Any]:
        """The source's configuration."""
        return dict(json.loads(self.files.get(CONFIG_FILE, b"{}")))

    @property
    def facts(self) -> dict[str, Any]:
        """The source's name, kind, checksums and license; empty for an import by an earlier version."""
        return dict(json.loads(self.files.get(FACTS_FILE, b"{}")))

    def with_type_0_in_positions(self) -> "SourceFiles":
        """Move the embedding of token type 0 to the positions, where our model has it.

        Two rounded weights have another sum than our rounded weight.
        """
        types, positions = map(self.weights.get, (_TOKEN_TYPES, POSITIONS))
        if types is None or positions is None:
            return self
        moved = {POSITIONS: positions + types[0], _TOKEN_TYPES: types - types[0]}
        return replace(self, weights={**self.weights, **moved})

    def write(self, folder: Path, positions: int) -> None:
        """Write ``SOURCE_FILE`` to the dictionary's folder, and the files by which sentence-transformers opens it.

        ``positions`` is the source's number, for ``with_text_limit``.
        """
        from safetensors.torch import save_file

        tensors = {"order": self.order, "vocabulary": torch.tensor(self.vocabulary)}
        for name, content in self.files.items():
            tensors[f"file:{name}"] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for kind, weights in (("weight", self.weights), ("head", self.heads)):
            tensors |= {f"{kind}:{name}": weight.contiguous().clone() for name, weight in weights.items()}
        save_file(tensors, folder / SOURCE_FILE)
        # The library makes files that only their owner can read.
        shutil.copymode(folder / DICTIONARY_FILE, folder / SOURCE_FILE)
        for name, content in with_text_limit(self.files, positions).items():
            if name in _SENTENCE_ENCODER_FILES or _MODULE_FILE.fullmatch(name):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)

    def restore(self, weights: Mapping[str, Tensor], family: Family, positions: int) -> dict[str, Tensor]:
        """Reorder exported weights to the source's ids, and add the source's weights that our model lacks.

        Weights that have not been trained since the import are restored bit for bit. ``positions`` is our model's
        number.
        """
        of_vocabulary = (family.encoder["encoder.embed_tokens.weight"], family.lm_head["lm_head.bias"])
        restored = {}
        for full_name, weight in weights.items():
            name = full_name.removeprefix(family.prefix)
            if name in of_vocabulary:
                weight = torch.empty_like(weight).index_copy_(0, self.order, weight)
            elif name == POSITIONS and name in self.weights:
                weight = self._positions(weight[-positions:])
            restored[full_name] = weight if name == POSITIONS else self.weights.get(name, weight)
        # An encoder alone has no prefix, and no heads.
        heads = self.heads if any(name.startswith(family.prefix) for name in restored) else {}
        poolers = {f"{family.prefix}{name}": self.weights[name] for name in _POOLER if name in self.weights}
        # A masked language model does not use a pooler, but stock encoders that open its folder do.
        return heads | ({} if any(name.endswith(_POOLER) for name in restored) else poolers) | restored

    def _positions(self, ours: Tensor) -> Tensor:
        """Return the source's position table, updated from our rows <float>[positions, D].

        Our rows include the embedding of token type 0, which is subtracted. Because subtraction does not exactly undo
        addition, values that training has not changed are taken from the source. Rows before the first position are
        unused and stay as they were.
        """
        table, types = self.weights[POSITIONS].clone(), self.weights.get(_TOKEN_TYPES)
        theirs, added = table[len(table) - len(ours) :], torch.zeros(()) if types is None else types[0]
        theirs.copy_(torch.where(ours == theirs + added, theirs, ours - added))
        return table


def kept_weights(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that an export must restore, under the source's names without prefix."""
    return {name: theirs[name] for name in _KEPT_WEIGHTS if name in theirs}


def kept_files(folder: Path) -> dict[str, bytes]:
    """Return a source's config.json and the files of its tokenizer and of sentence-transformers, name -> content."""
    modules = sorted(path.relative_to(folder).as_posix() for path in folder.glob("[1-9]*_*/*"))
    names = [CONFIG_FILE, *_OTHER_FILES, *filter(_MODULE_FILE.fullmatch, modules)]
    found = {name: read_regular(folder / name) for name in names if (folder / name).is_file()}
    return {name: content for name, content in found.items() if content}


def with_text_limit(files: Mapping[str, bytes], positions: int) -> dict[str, bytes]:
    """Return a source's files with sentence-transformers' limit in its own file, and not in the tokenizer's alone.

    Version 6 saves it as the tokenizer's ``model_max_length``, but texts for the encoder may become longer.
    """
    settings = parse_json(files.get(_SENTENCE_CONFIG, b"{}"), _SENTENCE_CONFIG)
    if _MODULES not in files or not isinstance(settings, dict) or settings.get("max_seq_length") is not None:
        return dict(files)
    named = json.loads(files.get(_TOKENIZER_CONFIG, b"{}")).get("model_max_length")
    limit = min(named, positions) if isinstance(named, int | float) else positions
    return {**files, _SENTENCE_CONFIG: json.dumps({**settings, "max_seq_length": limit}, indent=2).encode()}


def facts_and_card(name: str, facts: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """Return what an export says about a source in a folder, file name -> content."""
    card = folder / SOURCE_CARD
    content = read_regular(card) if card.is_file() else b""
    # The metadata of a model card are between lines of three hyphens.
    metadata = re.match(rb"---\s*\n(.*?)^---", content, re.DOTALL | re.MULTILINE)
    license = metadata and re.search(rb"^license:\s*['\"]?([\w.+-]+)", metadata[1], re.MULTILINE)
    known = {"source": name, **facts, **({"license": license[1].decode()} if license else {})}
    return {FACTS_FILE: json.dumps(known).encode(), **({SOURCE_CARD: content} if content else {})}


def read_source_files(folders: list[Path], vocabulary: int) -> SourceFiles | None:
    """Read the first ``SOURCE_FILE`` in ``folders``; return None if there is none or it is for another vocabulary."""
    path = next((folder / SOURCE_FILE for folder in folders if (folder / SOURCE_FILE).is_file()), None)
    if path is None:
        return None
    read_regular(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        source = _source_of(load_file(path))
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it from the folder of the import") from error
    return source if source.vocabulary == vocabulary else None


def _source_of(tensors: dict[str, Tensor]) -> SourceFiles:
    """Return a source from the tensors of ``SOURCE_FILE``; raise a ValueError for other tensors."""
    files = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("file:")}
    weights, heads = (
        {name.removeprefix(kind): tensor.float() for name, tensor in tensors.items() if name.startswith(kind)}
        for kind in ("weight:", "head:")
    )
    order, vocabulary = tensors.get("order"), tensors.get("vocabulary")
    names = {name for name in files if not _MODULE_FILE.fullmatch(name)}
    known = names <= {CONFIG_FILE, FACTS_FILE, SOURCE_CARD, *_OTHER_FILES} and weights.keys() <= {*_KEPT_WEIGHTS}
    known = known and all(tensor.dtype == torch.uint8 for tensor in files.values())
    if not known or order is None or vocabulary is None or vocabulary.numel() != 1 or order.dim() != 1:
        raise ValueError("its content is not what maelm import writes")
    if not torch.equal(order.sort().values, torch.arange(len(order))):
        raise ValueError("its content is not what maelm import writes")
    contents = {name: tensor.numpy().tobytes() for name, tensor in files.items()}
    source = SourceFiles(order, int(vocabulary), contents, weights, heads)
    if CONFIG_FILE in source.files and source.config.get("model_type") not in FAMILIES:
        raise ValueError(f"its model type {source.config.get('model_type')!r} is not one that maelm import knows")
    return source
