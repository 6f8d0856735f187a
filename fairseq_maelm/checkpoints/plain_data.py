"""Checkpoint files as plain data: tensors, and settings made of numbers, strings, lists and dicts.

Nothing here builds objects named in a file, resolves references, or evaluates strings.
"""

import argparse
import itertools
import math
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from fairseq_maelm.checkpoints.folder import read_folder
from fairseq_maelm.checkpoints.integrity import find_damage, find_danger, weights_alone
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE

# fairseq's own configuration has three levels and some 300 values.
_DEEPEST = 20
_MOST_VALUES = 20_000
_LONGEST_STRING = 1_000_000
# Largest ratio of all weights' sizes to their storage. fairseq's RoBERTa has two names for its embeddings.
_MOST_NAMES = 3
_DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.bool),
)
_LARGEST_NUMBER = 2**32  # the largest options are seeds
# Section -> the flat option of old checkpoints that is the section's "_name" today.
_FLAT_NAMES = {"task": "task", "model": "arch"}


class CheckpointError(ValueError):
    """A checkpoint is damaged, of an unknown type, or has content that no ordinary checkpoint has."""


def shown(value: Any) -> str:
    """Format a value for a message as one line of at most 60 printable ASCII characters."""
    try:
        text = ascii(value)
    except RecursionError:
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_state(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Read a dictionary of tensors, plain values and ``argparse.Namespace`` without running any code in the file.

    A file named checkpoint.json stands for its folder; see ``fairseq_maelm.checkpoints.folder``. With ``mapped``, the
    weights of other files are memory-mapped and their checksums are not verified: for callers that ignore the weights.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    state = _read_folder(path) if path.name == CHECKPOINT_FILE else load_plain(path, mapped)
    if isinstance(state, dict) and state and all(map(torch.is_tensor, state.values())):
        raise CheckpointError(f"{path} {weights_alone(path)}")
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f'{path} is not a checkpoint of fairseq: it holds no weights under "model"')
    return state


def load_plain(path: Path, mapped: bool = False) -> Any:
    """Load tensors, plain values and ``argparse.Namespace`` in memory proportional to the file; see ``read_state``."""
    allow_namespaces()
    if damage := find_danger(path) if mapped else find_damage(path):
        raise CheckpointError(f"{path} {damage}")
    # Files of torch before 1.6 cannot be mapped.
    mmap = mapped and zipfile.is_zipfile(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged or hostile file can raise any exception
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {reason_of(error)}") from None


def _read_folder(path: Path) -> dict[str, Any]:
    try:
        return read_folder(path.parent)
    except Exception as error:  # as above
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {reason_of(error)}") from None


def averaged_state(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint with its weights replaced by the running average of ``--store-ema``.

    The optimizer's state belongs to the replaced weights and is removed, so training restarts at the first epoch.
    """
    extra = state.get("extra_state")
    average, precise = (extra.get(name) if isinstance(extra, dict) else None for name in ("ema", "ema_fp32_params"))
    if not isinstance(average, dict):
        raise CheckpointError(
            f"{path} holds no average of the weights: it was not trained with --store-ema, or is already an average"
        )
    weights = {**average}
    if isinstance(precise, dict):
        # Single precision weights; integers are not updated in training and are not taken from here.
        weights |= {name: each for name, each in precise.items() if torch.is_tensor(each) and each.is_floating_point()}
    kept = {name: value for name, value in state.items() if name != "last_optimizer_state"}
    iterator = {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    return {**kept, "model": weights, "extra_state": {"train_iterator": iterator}}


def allow_namespaces() -> None:
    """Let torch.load read ``argparse.Namespace`` with weights_only in this process.

    Namespace is the only type in fairseq's checkpoints besides tensors and plain values; torch still refuses all
    others. A context manager would not cover fairseq's own calls of torch.load.
    """
    torch.serialization.add_safe_globals([argparse.Namespace])


def reason_of(error: Exception) -> str:
    """Shorten torch's long message to one line that says why a file is refused."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        text = text.partition("WeightsUnpickler error:")[2] or text
        named = re.search(r"GLOBAL ([^\s`,;]+)", text)
        if named:
            return f"it holds {shown(named[1])[1:-1]}, which is not plain data and is not loaded"
    text = " ".join(text.strip().partition("\n")[0].split()) or type(error).__name__
    return text if len(text) <= 150 else f"{text[:147]}..."


def plain_sections(state: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return the configuration of a checkpoint: section -> option -> value.

    The sections are fairseq's, such as "task" and "model". Checkpoints of old fairseq versions have no sections: all
    their options are returned both as "task" and as "model".
    """
    for kind in ("cfg", "args"):
        content = state.get(kind)
        if content is None:
            continue
        plain = _plain(content, path, kind, 0, itertools.count(1))
        if not isinstance(plain, dict):
            raise CheckpointError(f"{path} holds {shown(content)} as its configuration, not a table of options")
        if kind == "args":
            return {section: {**plain, "_name": plain.get(name)} for section, name in _FLAT_NAMES.items()}
        return {name: section for name, section in plain.items() if isinstance(section, dict)}
    raise CheckpointError(f"{path} holds no configuration, so it is unknown which model its weights belong to")


def _plain(value: Any, path: Path, place: str, depth: int, count: Iterator[int]) -> Any:
    """Copy a setting, with namespaces replaced by dicts; ``count`` counts values over all recursive calls."""
    if depth > _DEEPEST:
        raise CheckpointError(f"{path} holds a configuration that is nested more than {_DEEPEST} levels deep")
    if next(count) > _MOST_VALUES:
        raise CheckpointError(f"{path} holds a configuration with more than {_MOST_VALUES:,} values")
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if type(value) is dict:
        wrong = next((key for key in value if type(key) not in (str, int) or "${" in str(key)), None)
        if wrong is not None:
            raise CheckpointError(
                f"{path} holds {shown(wrong)} in {place} as the name of an option, which must be plain text"
            )
        return {
            str(key): _plain(item, path, f"{place}.{shown(key)[1:-1]}", depth + 1, count) for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return [_plain(item, path, place, depth + 1, count) for item in value]
    if type(value) is str and "${" in value:
        raise CheckpointError(f"{path} refers to another option in {place}, which is not supported: {shown(value)}")
    if type(value) is str and len(value) > _LONGEST_STRING:
        raise CheckpointError(
            f"{path} holds a string of {len(value):,} characters in {place}, more than the {_LONGEST_STRING:,} that "
            "are allowed"
        )
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise CheckpointError(f"{path} holds {shown(value)} in {place}, which is neither a number nor a string")


def declared_options(options: Mapping[str, Any], dataclass: type, path: Path, section: str) -> dict[str, Any]:
    """Return only those options that ``dataclass`` declares."""
    chosen = {}
    for name, kind in get_type_hints(dataclass).items():
        if name in options and not name.startswith("_"):
            if not _fits(options[name], kind):
                raise CheckpointError(
                    f"the {section}.{name} of {path} must be {_describe(kind)}, not {shown(options[name])}"
                )
            chosen[name] = options[name]
    return chosen


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if kind is float:
        return type(value) in (int, float) and not math.isnan(value)
    if kind is int:
        return type(value) is int and abs(value) <= _LARGEST_NUMBER
    if isinstance(kind, type) and issubclass(kind, Enum):
        return type(value) is str and value in {str(member.value) for member in kind}
    return type(value) is kind and value != "???"


def _describe(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_describe(each) for each in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    names = {int: f"a whole number up to {_LARGEST_NUMBER}", float: "a number", str: "a string"}
    return names.get(kind, "True or False" if kind is bool else "empty")


def check_weights(weights: dict[str, Any], path: Path) -> None:
    """Check that all weights are ordinary, finite tensors, fully stored in the file, and that few share storage."""
    held, named = {}, 0
    for name, tensor in weights.items():
        if type(name) is not str or not re.fullmatch(r"[\w.:\- ]{1,300}", name):
            raise CheckpointError(f"{path} holds a weight under the name {shown(name)}, which is not valid")
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(f"{path} holds the weight {name}, which is not an ordinary tensor")
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{path} holds the weight {name} as {tensor.dtype}, which is not supported")
        size, storage = tensor.numel() * tensor.element_size(), tensor.untyped_storage()
        if size > storage.nbytes():
            raise CheckpointError(
                f"{path} holds the weight {name} with {tensor.numel():,} numbers, but most of them are not in the file"
            )
        held[storage.data_ptr()] = storage.nbytes()
        named += size
    if named > _MOST_NAMES * sum(held.values()):
        raise CheckpointError(f"{path} holds too many names that share the same weights")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{path} holds the weight {name} with numbers that are not finite: the training diverged"
            )
