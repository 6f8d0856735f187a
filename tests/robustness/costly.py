"""Files that would cost far more than their size, never end, or lead out of their folder.

Each is made from a good file of the world. The commands run in a child with little memory.
"""

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robustness.commands import TRAIN
from robustness.world import World

_CHECKPOINT = "fill 'the <mask>' --checkpoint {bad} --vocabulary {data}"
_CLASSIFIER = "predict {sentences.tsv} --checkpoint {bad} --vocabulary {sentences}"
_FOLDER = "import {bad} --output {new}"
_TEXT = "fill 'the <mask>' --checkpoint {pretrained} --vocabulary {bad}"
_COMPLETE = "fill 'the <mask>' --checkpoint {bad}"
_VOCABULARY = "import {pretrained} --vocabulary {bad} --output {new}"
_HUGE = 6_000_000_000


class Costly(NamedTuple):
    """A bad file or folder: its name, how it is written, the command that opens it, and what the answer says."""

    name: str
    write: Callable[[World, Path], Any]
    line: str
    expected: str


def costly_files() -> Iterator[Costly]:
    """Yield all cases."""
    yield from _checkpoints()
    yield from _folders()
    yield from _tokenizers()
    yield from _special_files()


# Checkpoints


def _state(world: World) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(world.path("pretrained"), weights_only=True)
    return state


def _saved(change: Callable[[dict[str, Any]], Any]) -> Callable[[World, Path], None]:
    return lambda world, path: torch.save(change(_state(world)), path)


def _pickled(body: bytes) -> bytes:
    """A file of torch with another pickle."""
    source, target = io.BytesIO(), io.BytesIO()
    torch.save({}, source)
    with zipfile.ZipFile(source) as entries, zipfile.ZipFile(target, "w") as changed:
        for entry in entries.infolist():
            changed.writestr(entry.filename, body if entry.filename.endswith("data.pkl") else entries.read(entry))
    return target.getvalue()


def _call(name: str, argument: Any) -> bytes:
    """A pickle that calls a function that torch allows with ``weights_only=True``."""
    return b"\x80\x02c" + name.encode() + b"\n" + pickle.dumps(argument, 2)[2:-1] + b"\x85R."


def _calling(name: str) -> Callable[[World, Path], Any]:
    content = _pickled(_call(name, _HUGE))
    assert len(content) < 1000
    return lambda world, path: path.write_bytes(content)


def _rotary(state: dict[str, Any]) -> dict[str, Any]:
    options = {"positions": "rotary", "decoder_positions": "absolute", "relative_buckets": "none"}
    state["cfg"]["model"] |= {**options, "max_positions": 20_000_000}
    del state["model"]["encoder.embed_positions.weight"], state["model"]["encoder.relative_attention_bias.weight"]
    return state


def _wide(state: dict[str, Any]) -> dict[str, Any]:
    """Sizes that the checked weights have, while the largest weights are missing."""
    width = 100_000
    state["cfg"]["model"] |= {"encoder_embed_dim": width, "decoder_embed_dim": width}
    state["model"]["encoder.embed_tokens.weight"] = torch.zeros(2, width)
    state["model"]["decoder.layernorm_embedding.weight"] = torch.zeros(width)
    return state


def _shared(state: dict[str, Any]) -> dict[str, Any]:
    """Many layers whose weights are one."""
    weights, layers = state["model"], 900
    fc1 = torch.zeros(2048, 128)
    state["cfg"]["model"] |= {"encoder_layers": layers, "encoder_ffn_embed_dim": 2048}
    first = {name: weight for name, weight in weights.items() if name.startswith("encoder.layers.0.")}
    first["encoder.layers.0.fc1.weight"], first["encoder.layers.0.fc2.weight"] = fc1, fc1.view(128, 2048)
    first["encoder.layers.0.fc1.bias"] = torch.zeros(2048)
    for number in range(layers):
        weights |= {name.replace(".0.", f".{number}.", 1): weight for name, weight in first.items()}
    return state


def _deep(state: dict[str, Any]) -> dict[str, Any]:
    """A decoder of the layers of an encoder that has far more of them than the file."""
    state["cfg"]["model"] |= {"decoder_attention": "shared", "decoder_layers": 2**31, "encoder_layers": 2**32}
    return state


def _laughs(state: dict[str, Any]) -> dict[str, Any]:
    """Lists of lists that share their elements."""
    value: Any = [1] * 50
    for _ in range(12):
        value = [value] * 50
    state["cfg"]["common"]["x"] = value
    return state


def _overlapping(world: World, path: Path) -> None:
    """An archive whose records are one stretch of the file."""
    names = [f"archive/data/{number}" for number in range(500)]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr(names[0], bytes(10_000_000))
        for name in names[1:]:
            entry = zipfile.ZipInfo(name)
            shared = archive.getinfo(names[0])
            entry.header_offset, entry.CRC = shared.header_offset, shared.CRC
            entry.file_size = entry.compress_size = shared.file_size
            archive.filelist.append(entry)
            archive.NameToInfo[name] = entry
    path.write_bytes(stream.getvalue())


def _bomb(path: Path) -> None:
    """An archive of 6 MB with a record of 6 GB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        with archive.open("archive/data/0", "w", force_zip64=True) as record:
            for _ in range(60):
                record.write(bytes(_HUGE // 60))


def _checkpoints() -> Iterator[Costly]:
    for name in ("builtins\nbytearray", "torch.storage\nUntypedStorage", "torch\nByteTensor"):
        case = name.replace("\n", ".")
        said = f"holds .*{case.split('.')[-1]}"
        yield Costly(f"a checkpoint that calls {case}", _calling(name), _CHECKPOINT, said)
    array = _calling("builtins\nbytearray")
    line = "import {bad} --vocabulary {data} --output {new}"
    yield Costly("a checkpoint for import that calls bytearray", array, line, "holds .*bytearray")
    for option in ("restore-file", "finetune-from-model"):
        line = f"pretrain {{data}} --output {{new}} {TRAIN} {option}={{bad}}"
        yield Costly(f"--{option} that calls bytearray", array, line, "holds .*bytearray")
    yield Costly("a decoder's table of positions", _saved(_rotary), _CHECKPOINT, "max_positions 20000000, but")
    said = "holds .* parameters, but a model with this dict.txt has"
    yield Costly("a width that most weights lack", _saved(_wide), _CHECKPOINT, said)
    yield Costly("900 layers with one weight", _saved(_shared), _CHECKPOINT, "share")
    yield Costly("billions of layers to read", _saved(_deep), _CHECKPOINT, "at most 1000 layers are supported")
    yield Costly("a configuration that repeats itself", _saved(_laughs), _CHECKPOINT, "configuration .* values")
    yield Costly("records that overlap", _overlapping, _CHECKPOINT, "holds records of|overlap")


# Folders of Hugging Face


def _copied(world: World, path: Path) -> None:
    shutil.copytree(world.folder / "hf", path)


def configured(**options: Any) -> Callable[[World, Path], None]:
    """Write a folder whose config.json has other options."""

    def write(world: World, path: Path) -> None:
        _copied(world, path)
        _change_json(path / "config.json", lambda config: config.update(options))

    return write


def _change_json(file: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def _without_tokenizer(write: Callable[[World, Path], None]) -> Callable[[World, Path], None]:
    """So that transformers has to make the tokenizer."""

    def write_both(world: World, path: Path) -> None:
        write(world, path)
        (path / "tokenizer.json").unlink()

    return write_both


def _with_pickle(content: bytes | None) -> Callable[[World, Path], None]:
    def write(world: World, path: Path) -> None:
        _copied(world, path)
        (path / "model.safetensors").unlink()
        file = path / "pytorch_model.bin"
        file.write_bytes(content) if content is not None else _bomb(file)

    return write


def _sharded(shard: str) -> Callable[[World, Path], None]:
    def write(world: World, path: Path) -> None:
        _copied(world, path)
        (path / "model.safetensors").rename(path.parent / "elsewhere.safetensors")
        index = {"metadata": {}, "weight_map": {"a": shard.format(path.parent)}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))

    return write


def _folders() -> Iterator[Costly]:
    for option in ("num_hidden_layers", "max_position_embeddings", "hidden_size", "num_labels"):
        yield Costly(f"{option} of 10^9", configured(**{option: 10**9}), _FOLDER, option)
    for number in (1e9, "1000000000"):
        yield Costly(f"hidden_size {number!r}", configured(hidden_size=number), _FOLDER, "hidden_size")
    yield Costly("labels of a tokenizer", _without_tokenizer(configured(num_labels=10**9)), _FOLDER, "num_labels")
    yield Costly("pytorch_model.bin that grows", _with_pickle(None), _FOLDER, "compressed record")
    body = _pickled(_call("builtins\nbytearray", _HUGE))
    yield Costly("pytorch_model.bin that calls bytearray", _with_pickle(body), _FOLDER, "holds .*bytearray")
    body = _pickled(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    said = r"holds \S*os.system, which is not plain data and is not loaded$"
    yield Costly("pytorch_model.bin that calls system", _with_pickle(body), _FOLDER, said)
    for shard in ("../elsewhere.safetensors", "{0}/elsewhere.safetensors"):
        yield Costly(f"a shard at {shard}", _sharded(shard), _FOLDER, "may only name files in this folder")


# Tokenizers


def _tokenizer(change: Callable[[Any], Any]) -> Callable[[World, Path], None]:
    """A folder for import, with a changed tokenizer.json and without the sentencepiece model that would replace it."""

    def write(world: World, path: Path) -> None:
        _copied(world, path)
        (path / "sentencepiece.bpe.model").unlink(missing_ok=True)
        _change_json(path / "tokenizer.json", change)

    return write


def _replacement(content: str, pattern: Any = None) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern or {"String": "e"}, "content": content}


def _tokenizers() -> Iterator[Costly]:
    for case, steps in {
        "one long text": [_replacement("x" * 26_000)],
        "a letter by many": [_replacement("e" * 9)] * 9,
        "a text in front": [{"type": "Prepend", "prepend": "x" * 26_000}],
        "every position": [_replacement("e", {"Regex": ""})] * 40,
        "bytes by two": [{"type": "ByteLevel"}] * 40,
    }.items():
        normalizer = {"type": "Sequence", "normalizers": steps}
        write = _tokenizer(lambda content, new=normalizer: content.update(normalizer=new))
        yield Costly(f"a tokenizer.json that replaces {case}", write, _FOLDER, "tokenizer.json.*longer")
    regex = {"type": "Split", "pattern": {"Regex": "(e+)+$"}, "behavior": "Isolated", "invert": False}
    write = _tokenizer(lambda content: content.update(pre_tokenizer=regex))
    yield Costly("a tokenizer.json that backtracks", write, _FOLDER, "tokenizer.json.*a repeated group")


# What is not a file


def _special(source: str, name: str, make: Callable[[Path], Any]) -> Callable[[World, Path], None]:
    def write(world: World, path: Path) -> None:
        shutil.copytree(world.folder / source, path)
        (path / name).unlink(missing_ok=True)
        make(path / name)

    return write


def _special_files() -> Iterator[Costly]:
    names = {
        ("data", "dict.txt"): _TEXT,
        ("data", "sentencepiece.bpe.model"): _TEXT,
        ("data", "manifest.json"): _TEXT,
        ("complete", "SHA256SUMS"): _COMPLETE,
        ("complete", "checkpoint.json"): _COMPLETE,
        ("complete", "config.json"): _COMPLETE,
        ("complete", "dict.txt"): _COMPLETE,
        ("complete", "tokenizer.json"): _COMPLETE,
        ("hf", "config.json"): _FOLDER,
        ("hf", "model.safetensors"): _FOLDER,
        ("hf", "tokenizer.json"): _FOLDER,
        ("hf", "tokenizer_config.json"): _FOLDER,
        ("hf", "sentencepiece.bpe.model"): _FOLDER,
    }
    kinds = [("FIFO", os.mkfifo), ("device", lambda path: path.symlink_to("/dev/zero"))]
    for number, ((source, name), line) in enumerate(names.items()):
        kind, make = kinds[number % 2]
        said = rf"{name} is not a regular file|there is n|no {name}"
        yield Costly(f"{source}/{name} is a {kind}", _special(source, name, make), line, said)
