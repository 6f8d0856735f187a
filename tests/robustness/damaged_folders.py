"""Prepared folders and folders of Hugging Face with a damaged file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robustness.commands import TRAIN, Case

Damage = Callable[[Path], Any]


def _at(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :]


def _foreign(content: bytes, token: int) -> bytes:
    tokens = np.frombuffer(content, dtype=np.uint16).copy()
    tokens[len(tokens) // 2] = token
    return tokens.tobytes()


def _with_foreign(name: str) -> Damage:
    def change(folder: Path) -> None:
        arrays = dict(np.load(folder / "train.npz"))
        arrays[name] = np.full(len(arrays[name]), 4_000_000_000, dtype=np.uint32)
        np.savez(folder / "train.npz", **arrays)

    return change


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(change(content.splitlines(keepends=True)))


def _configured(**changes: Any) -> Damage:
    """Change config.json; None removes an entry. Only our own class is known to have its code in the folder."""

    def change(content: bytes) -> bytes:
        own_code = {"auto_map": None} if "model_type" in changes else {}
        settings = {**json.loads(content), **own_code, **changes}
        return json.dumps({name: value for name, value in settings.items() if value is not None}).encode()

    return _at("config.json", change)


def _modernbert(**changes: Any) -> Damage:
    return _configured(model_type="modernbert", **changes)


def _rope(base: float, kind: str = "default") -> dict[str, Any]:
    return {"full_attention": {"rope_type": kind, "rope_theta": base}}


def _with_rows(rows: int) -> Damage:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        for name, weight in weights.items():
            if name.endswith("word_embeddings.weight") or name == "lm_head.bias":
                weights[name] = weight[:rows].clone()
        save_file(weights, folder / "model.safetensors")
        _configured(vocab_size=rows)(folder)

    return change


_SPM = "sentencepiece.bpe.model"
FOLDERS: dict[str, dict[str, tuple[Damage, str]]] = {
    "data": {
        "no-index": (_without("train.idx"), r"there are no files train.bin and train.idx in"),
        "no-text": (_without("train.bin"), r"there are no files train.bin and train.idx in"),
        "no-dictionary": (_without("dict.txt"), "there is no dict.txt in"),
        "index-cut": (_at("train.idx", lambda content: content[:-5]), r"train.idx is damaged: it has"),
        "index-short": (_at("train.idx", lambda content: content[:20]), r"train.idx is damaged: it"),
        "index-empty": (_at("train.idx", lambda content: b""), r"train.idx is damaged: it does not begin"),
        "index-magic": (_at("train.idx", lambda content: _flipped(content, 1)), r"train.idx is damaged: it does not"),
        "index-count": (_at("train.idx", lambda content: _flipped(content, 18)), r"train.idx is damaged: it has"),
        "index-length": (_at("train.idx", lambda content: _flipped(content, 27)), r"train.idx is damaged: its len"),
        "index-offset": (
            _at("train.idx", lambda content: _flipped(content, len(content) - 3)),
            r"its lengths and its",
        ),
        "text-cut": (_at("train.bin", lambda content: content[: len(content) // 2]), r"train.bin has [\d,]+ bytes"),
        "text-foreign": (
            _at("train.bin", lambda content: _foreign(content, 60_000)),
            r"train.bin holds the token id 60000",
        ),
        "text-mask": (_at("train.bin", lambda content: _foreign(content, 601)), r"train.bin holds the token id 601"),
        "dictionary-order": (_at("dict.txt", _lines(lambda lines: lines[::-1])), "is not the dictionary that"),
        "dictionary-piece": (
            lambda folder: (
                _at("dict.txt", _lines(lambda lines: [b"foreign 1\n", *lines[1:]]))(folder),
                _without("manifest.json")(folder),
            ),
            f"dict.txt and {_SPM} in .* do not belong",
        ),
        "manifest-empty": (_at("manifest.json", lambda content: b"{}"), "manifest.json is damaged"),
        "model-text": (_at(_SPM, lambda content: b"no model"), f"{_SPM} is not a sentencepiece model"),
        "model-cut": (_at(_SPM, lambda content: content[: len(content) // 2]), f"{_SPM} "),
    },
    "sentences": {
        "text-foreign": (
            _at("input0/train.bin", lambda content: _foreign(content, 60_000)),
            r"holds the token id 60000",
        ),
        "labels-cut": (_at("label/train.idx", lambda content: content[:-5]), r"train.idx is damaged: it has"),
        "manifest-empty": (
            _at("manifest.json", lambda content: b"{}"),
            "was not written by `maelm prepare sentences` or `maelm prepare glue` of this version",
        ),
        "manifest-part": (
            _at("manifest.json", lambda content: content.replace(b'"settings"', b'"setting"')),
            "manifest.json is damaged: parts of it are missing",
        ),
    },
    "tagging": {
        "cut": (_at("train.npz", lambda content: content[:-99]), r"train.npz"),
        "foreign": (_with_foreign("pieces"), r"train.npz holds the token id 4000000000, but dict.txt has only"),
    },
    "squad": {
        "cut": (_at("train.npz", lambda content: content[:-99]), r"train.npz"),
        "foreign": (
            _with_foreign("question_tokens"),
            r"train.npz holds the token id 4000000000, but dict.txt has only",
        ),
    },
    "hf": {
        "no-weights": (_without("model.safetensors"), "there are no weights in"),
        "weights-cut": (_at("model.safetensors", lambda content: content[:-99]), "model.safetensors"),
        "no-tokenizer": (_without("tokenizer.json"), "token"),
        "tokenizer-text": (_at("tokenizer.json", lambda content: b"text"), "token"),
        "tokenizer-deep": (_at("tokenizer.json", lambda content: b"[" * 200_000), "token"),
        "electra-small": (_configured(model_type="electra", embedding_size=8), "its weights lack"),
        "bert-without-its-weights": (
            _configured(model_type="bert", relative_attention_buckets="none"),
            "its weights lack encoder.layer.0",
        ),
        "code-of-its-own": (
            _configured(model_type="roberta", auto_map={"AutoModel": "modeling.Model"}),
            "config.json names code in the folder .* such code is never run",
        ),
        "other-kind": (_configured(model_type="t5"), "model_type 't5' is not one of"),
        "epsilon": (_configured(layer_norm_eps=0.5), "--layer-norm-eps must be at least 1e-14 and at most 0.01"),
        "epsilon-text": (_configured(layer_norm_eps="small"), "small"),
        "activation": (_configured(hidden_act="gelu_new"), "computes different values"),
        "relative-keys": (_configured(position_embedding_type="relative_key"), "position_embedding_type is 'rel"),
        "decoder": (_configured(is_decoder=True), "is_decoder is True"),
        "untied": (_configured(tie_word_embeddings=False), "tie_word_embeddings is False"),
        "padding": (_configured(pad_token_id=2), "padding is 1 in its tokenizer, but 2 in its model"),
        "fewer-layers": (_configured(num_hidden_layers=1), "not have .* of its weights|does not match the wei"),
        "more-layers": (_configured(num_hidden_layers=9), "weights lack encoder.layer"),
        "fewer-rows": (_with_rows(300), "its tokenizer has the id .*, but its model has only 300 embeddings"),
        "mpnet-buckets": (
            _configured(model_type="mpnet", relative_attention_num_buckets=64),
            "transformers cannot read",
        ),
        "modernbert-scaled": (_modernbert(rope_parameters=_rope(1e4, "linear")), "its rotary positions are scaled"),
        "distilbert-without-layers": (
            _configured(model_type="distilbert", num_hidden_layers=None),
            "dim is None, not a whole number",
        ),
    },
}
_FOLDER_COMMANDS = {
    "data": f"pretrain {{bad}} --output {{new}} {TRAIN}",
    "hf": "import {bad} --output {new}",
}


def folder_cases() -> Iterator[Case]:
    for source, damages in FOLDERS.items():
        line = _FOLDER_COMMANDS.get(source, "finetune {bad} --checkpoint {pretrained} --output {new} --gpus 0")
        for name, (_, expected) in damages.items():
            bad = f"{{bad/{source}-{name}}}"
            yield Case(f"{source}: {name}", line.replace("{bad}", bad), expected)
