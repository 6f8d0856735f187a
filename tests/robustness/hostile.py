"""Checkpoints as somebody would make them who wants them to run code, to give away secrets or to hang the reader.

Every one is made from an honest checkpoint. What runs code leaves a file behind that tests look for.
"""

import argparse
import importlib
import io
import operator
import os
import pickle
import runpy
import subprocess
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from fairseq_maelm.architecture.config import MaelmModelConfig
from fairseq_maelm.checkpoints.reader import loadable_tasks

MARKER = "code-has-run"
SECRET = "MAELM_TEST_SECRET"


class Hostile(NamedTuple):
    """One file.

    Attributes:
        name: of the case.
        write: makes the file.
    """

    name: str
    write: Callable[[Path], None]


class RunsCode:
    """Unpickling this calls a function: what a file from a stranger may hold."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def pickled_calls(marker: Path) -> dict[str, RunsCode]:
    """Objects whose unpickling leaves ``marker`` behind, or looks for a way to."""
    code = expression(marker)
    nested = io.BytesIO()
    torch.save({"inner": RunsCode(os.system, f"touch {marker}")}, nested)
    return {
        "os.system": RunsCode(os.system, f"touch {marker}"),
        "os.popen": RunsCode(os.popen, f"touch {marker}"),
        "subprocess.call": RunsCode(subprocess.call, ["touch", str(marker)]),
        "subprocess.Popen": RunsCode(subprocess.Popen, ["touch", str(marker)]),
        "eval": RunsCode(eval, code),
        "exec": RunsCode(exec, code),
        "open": RunsCode(open, str(marker), "w"),
        "Path.touch": RunsCode(Path.touch, marker),
        "getattr": RunsCode(getattr, argparse.Namespace, "__init__"),
        "attrgetter": RunsCode(operator.attrgetter, "system"),
        "import": RunsCode(importlib.import_module, "antigravity"),
        "run_path": RunsCode(runpy.run_path, str(marker)),
        "pickle.loads": RunsCode(pickle.loads, pickle.dumps(RunsCode(os.system, f"touch {marker}"))),
        "torch's own loader": RunsCode(torch.storage._load_from_bytes, nested.getvalue()),
        "torch.load": RunsCode(torch.load, str(marker)),
        "torch.hub": RunsCode(torch.hub.load, "a/b", "c"),
        "namespace of a class": RunsCode(argparse.ArgumentParser),
    }


def expression(marker: Path) -> str:
    """A string that leaves ``marker`` behind when somebody evaluates it."""
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


def hostile_checkpoints(honest: dict[str, Any], marker: Path) -> Iterator[Hostile]:
    """Yield all cases.

    Args:
        honest: content of a pretraining checkpoint of the task maelm.
        marker: file that shows that code has run.
    """
    yield from _pickles(honest, marker)
    yield from _strings_for_fairseq(honest, marker)
    yield from _strings_for_us(honest, marker)
    yield from _references(honest)
    yield from _sizes(honest)
    yield from _weights(honest)
    yield from _files(honest)


def _changed(honest: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**honest, **changes}


def _configured(honest: dict[str, Any], section: str, **options: Any) -> dict[str, Any]:
    config = honest["cfg"]
    return {**honest, "cfg": {**config, section: {**config[section], **options}}}


def _saved(state: Any, old_format: bool = False) -> Callable[[Path], None]:
    return lambda path: torch.save(state, path, _use_new_zipfile_serialization=not old_format)


def _pickles(honest: dict[str, Any], marker: Path) -> Iterator[Hostile]:
    for number, (name, call) in enumerate(pickled_calls(marker).items()):
        places = {
            "on top": _changed(honest, surprise=call),
            "instead of everything": call,
            "among the weights": _changed(honest, model={**honest["model"], "encoder.more": call}),
            "in a namespace": _changed(honest, cfg={**honest["cfg"], "criterion": argparse.Namespace(x=call)}),
            "deep in the history": _changed(honest, extra_state={"a": [OrderedDict(b=({"c": call},))]}),
        }
        # One call in every place, and every call in one of them.
        chosen = places if number == 0 else [list(places)[number % len(places)]]
        for place in chosen:
            yield Hostile(f"{name} {place}", _saved(places[place]))
        yield Hostile(f"{name} in the old format", _saved(places["on top"], old_format=True))


def _options_of(registry: dict[str, Any], dataclasses: dict[str, Any], name: str) -> list[str]:
    """The options of a task or model of fairseq, whichever way it declares them."""
    if name in dataclasses and hasattr(dataclasses[name], "__dataclass_fields__"):
        return [option for option in dataclasses[name].__dataclass_fields__ if not option.startswith("_")]
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    registry[name].add_args(parser)
    return [action.dest for action in parser._actions]


def _strings_for_fairseq(honest: dict[str, Any], marker: Path) -> Iterator[Hostile]:
    """Every task and every model that fairseq registers, with code as the value of each option that it declares.

    The three ways in which a checkpoint can hold its configuration take turns.
    """
    code = expression(marker)
    for section, flat, registry, dataclasses in (
        ("task", "task", TASK_REGISTRY, TASK_DATACLASS_REGISTRY),
        ("model", "arch", MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY),
    ):
        for number, name in enumerate(sorted({*registry} - {"maelm", *loadable_tasks()})):
            options = dict.fromkeys(_options_of(registry, dataclasses, name), code)
            named = {**options, "_name": name}
            config = {**honest["cfg"], section: argparse.Namespace(**named)}
            args = argparse.Namespace(**{**options, "task": "maelm", "arch": "maelm_tiny", flat: name})
            ways = [
                ("", _configured(honest, section, **named)),
                (" as namespace", _changed(honest, cfg=config)),
                (" as args", _changed(honest, cfg=None, args=args)),
            ]
            way, state = ways[number % 3]
            yield Hostile(f"{section} {name}{way}", _saved(state))
    config = {**honest["cfg"], "task": {"_name": "masked_lm", "data": code}, "model": {"_name": "roberta_base"}}
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "max_positions")
    for option in (*sizes, "activation_fn", "untie_weights_roberta", "encoder_layers_to_keep"):
        model = {**config["model"], option: code}
        yield Hostile(f"RoBERTa's {option}", _saved(_changed(honest, cfg={**config, "model": model})))


def _strings_for_us(honest: dict[str, Any], marker: Path) -> Iterator[Hostile]:
    """Code as the value of each of our own options that is not free text."""
    for name in loadable_tasks():
        for option, field in TASK_DATACLASS_REGISTRY[name].__dataclass_fields__.items():
            if field.type not in (str, "str") and "str" not in str(field.type) and not option.startswith("_"):
                options = {"_name": name, option: expression(marker)}
                yield Hostile(f"{name}.{option}", _saved(_configured(honest, "task", **options)))
    for option in MaelmModelConfig.__dataclass_fields__:
        if not option.startswith("_"):
            yield Hostile(f"model.{option}", _saved(_configured(honest, "model", **{option: expression(marker)})))


def _references(honest: dict[str, Any]) -> Iterator[Hostile]:
    for reference in (f"${{oc.env:{SECRET}}}", "${oc.decode:'1'}", "a ${common.seed} b", "${model.encoder_layers}"):
        yield Hostile(f"{reference} in task.data", _saved(_configured(honest, "task", data=reference)))
        yield Hostile(f"{reference} in the task's name", _saved(_configured(honest, "task", _name=reference)))
        yield Hostile(f"{reference} in the model", _saved(_configured(honest, "model", encoder_layers=reference)))
        yield Hostile(f"{reference} as a name", _saved(_configured(honest, "common", **{reference: 1})))
        nested = {"a": [{"b": (1, [reference])}]}
        yield Hostile(f"{reference} in a list", _saved(_configured(honest, "common", x=nested)))
        config = {**honest["cfg"], "criterion": argparse.Namespace(a=argparse.Namespace(b=reference))}
        yield Hostile(f"{reference} in a namespace", _saved(_changed(honest, cfg=config)))
        args = argparse.Namespace(task="maelm", arch="maelm_tiny", data=reference)
        yield Hostile(f"{reference} in args", _saved(_changed(honest, cfg=None, args=args)))


def _sizes(honest: dict[str, Any]) -> Iterator[Hostile]:
    for option in (
        *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
        *("decoder_layers", "decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_attention_heads"),
        *("max_positions", "relative_num_buckets"),
    ):
        for value in (10**6, -1, 2.5, "12", None if option == "max_positions" else {}):
            state = _configured(honest, "model", **{option: value})
            yield Hostile(f"{option} {value!r}", _saved(state))
    sentences = {"_name": "sentence_prediction", "num_classes": 10**9, "classification_head_name": "h"}
    yield Hostile("10^9 classes", _saved(_configured(honest, "task", **sentences)))
    head = {f"classification_heads.h.{part}.weight": torch.zeros(2, 128) for part in ("dense", "out_proj")}
    state = _configured(honest, "task", **sentences)
    yield Hostile("10^9 classes of a head of two", _saved({**state, "model": {**state["model"], **head}}))
    sentences = {**sentences, "num_classes": 2, "max_positions": 10**9}
    state = _configured(honest, "task", **sentences)
    yield Hostile("10^9 positions of the task", _saved({**state, "model": {**state["model"], **head}}))
    yield Hostile("a string of 2 MB", _saved(_configured(honest, "common", user_dir="x" * 2_000_000)))
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    yield Hostile("nested 200 deep", _saved(_configured(honest, "common", x=deep)))


def _weights(honest: dict[str, Any]) -> Iterator[Hostile]:
    name = "encoder.embed_tokens.weight"
    for case, tensor in {
        "a tensor that repeats one number": torch.zeros(1).expand(10**6, 10**6),
        "a sparse tensor": torch.zeros(3, 3).to_sparse(),
        "a tensor without numbers": torch.zeros(10**6, 10**6, device="meta"),
        "a quantized tensor": torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8),
        "complex numbers": torch.zeros(2, 2, dtype=torch.complex64),
        "a list": [1.0, 2.0],
        "nothing": None,
    }.items():
        yield Hostile(f"{case} as a weight", _saved(_changed(honest, model={**honest["model"], name: tensor})))
    for wrong in ("a\nb", "../x", "x" * 1000, 3):
        weights = {**honest["model"], wrong: torch.zeros(1)}
        yield Hostile(f"a weight called {str(wrong)[:9]!r}", _saved(_changed(honest, model=weights)))
    for state in ({}, [], 3, {"model": []}, {"model": {}}, {"cfg": honest["cfg"]}, {**honest, "cfg": None}):
        yield Hostile(f"a file with {str(state)[:12]}", _saved(state))
    yield Hostile("a configuration that is a list", _saved(_changed(honest, cfg=[1, 2])))
    yield Hostile("a configuration without model", _saved(_changed(honest, cfg={"task": honest["cfg"]["task"]})))


def _files(honest: dict[str, Any]) -> Iterator[Hostile]:
    content = io.BytesIO()
    torch.save(honest, content)
    whole = content.getvalue()
    old = io.BytesIO()
    torch.save(honest, old, _use_new_zipfile_serialization=False)

    def compressed(path: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
            for entry in source.infolist():
                target.writestr(entry.filename, source.read(entry))

    def tar(path: Path) -> None:
        with tarfile.open(path, "w") as archive:
            for name in ("sys_info", "pickle", "storages", "tensors"):
                archive.addfile(tarfile.TarInfo(name))

    def script(path: Path) -> None:
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))

    yield Hostile("compressed records", compressed)
    yield Hostile("a tar archive", tar)
    yield Hostile("a TorchScript archive", script)
    for case, data in {
        "an unknown protocol": b"\x80\x7f.",
        "half an old file": old.getvalue()[: len(old.getvalue()) // 2],
        "a file without its end": whole[:-30],
    }.items():
        yield Hostile(case, lambda path, data=data: path.write_bytes(data))
