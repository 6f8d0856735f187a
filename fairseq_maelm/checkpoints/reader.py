"""Read a checkpoint of this package's model as data; nothing in the file is executed.

All code uses this module to load checkpoints, except where a run is resumed. Checkpoints may come from untrusted
sources, and fairseq would build any task and model that a configuration names, evaluate strings and resolve references.
This module accepts only known names, declared options of the right type and range, and sizes that match the weights in
the file.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_maelm.architecture.checks import check_config
from fairseq_maelm.architecture.config import MaelmModelConfig, complete_config
from fairseq_maelm.architecture.encoder_options import SIZES, EncoderOptions
from fairseq_maelm.checkpoints.fit import SETTINGS, classification_heads, saved_settings
from fairseq_maelm.checkpoints.plain_data import (
    CheckpointError,
    averaged_state,
    check_weights,
    declared_options,
    plain_sections,
    read_state,
    shown,
)
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.registration import register_names

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "check_depth",
    "check_sizes",
    "describe_checkpoint",
    "loadable_tasks",
    "read_checkpoint",
]

_DEEPEST = 1000
# Options for how training was executed. They do not matter when the checkpoint is loaded.
_OF_THE_MACHINE = {"attention": "auto", "precision": "fp32", "compile": False, "checkpoint_activations": False}
# Option -> (name of a weight, index of the dimension whose size must equal the option).
_DECODER_POSITIONS = {"max_positions": ("decoder.embed_positions.weight", 0)}
_DECODER_SIZES = {
    "decoder_embed_dim": ("decoder.layernorm_embedding.weight", 0),
    "decoder_ffn_embed_dim": ("decoder.layers.0.fc2.weight", 1),
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has passed all checks."""

    path: Path
    # Plain values. The sections "task" and "model" hold only declared options and ``_name``; the model's are complete.
    config: DictConfig
    weights: dict[str, Tensor]
    state: dict[str, Any]  # the rest of the file, unchanged: optimizer state and training history

    @property
    def task_name(self) -> str:
        """The name under which the task is registered."""
        return str(self.config.task._name)

    @property
    def predicts_masked_tokens(self) -> bool:
        """True if the checkpoint has an LM head, as after pretraining."""
        return any(name.startswith("lm_head.") for name in self.weights)

    @property
    def has_decoder(self) -> bool:
        """True if a decoder predicts masked tokens; it may consist of the encoder's layers."""
        return self.predicts_masked_tokens and self.config.model.decoder_layers > 0

    @property
    def is_sentence_encoder(self) -> bool:
        """True if the encoder was imported from a folder of sentence-transformers and not trained since."""
        return (self.path.parent / "modules.json").is_file()

    @property
    def vocabulary(self) -> int:
        """The fingerprint of the vocabulary; see ``dictionary_fingerprint``."""
        return int(saved_settings(self.weights)["vocabulary"])

    @property
    def heads(self) -> dict[str, list[int]]:
        """The fine-tuned heads: name -> [number of outputs, inner width]."""
        return classification_heads(self.weights)

    @property
    def encoder_options(self) -> dict[str, Any]:
        """The options that determine the encoder, by name, with its architecture as ``arch``, and where it is from."""
        model = self.config.model
        return {"arch": model._name, **asdict(EncoderOptions.of(model)), "imported_as": model.imported_as}

    @property
    def view(self) -> EncoderView:
        """The encoder's view of masked tokens in pretraining.

        Tasks without masking do not record the view. It then defaults to "kept" (the encoder saw ``<mask>``) for an LM
        head without a decoder, and to "dropped" otherwise.
        """
        task = self.config.task
        default = "dropped" if self.has_decoder or not self.predicts_masked_tokens else "kept"
        return EncoderView(
            str(task.get("masked_input") or default),
            float(task.get("encoder_mask_fraction") or 0.0),
            str(task.get("encoder_positions") or "original"),
        )

    @property
    def history(self) -> dict[str, Any]:
        """Those of ``num_updates``, ``epoch``, ``val_loss``, ``best`` and ``training_seconds`` that are recorded."""
        extra, made = self.state.get("extra_state", {}), self.state.get("optimizer_history") or [{}]
        history = {
            "num_updates": made[-1].get("num_updates"),
            "epoch": extra.get("train_iterator", {}).get("epoch"),
            "val_loss": extra.get("val_loss"),
            "best": extra.get("best"),
            "training_seconds": extra.get("previous_training_time"),
        }
        return {name: value for name, value in history.items() if value is not None}


def read_checkpoint(path: Path, overrides: Mapping[str, Any] | None = None, averaged: bool = False) -> Checkpoint:
    """Read a checkpoint of pretraining or fine-tuning without running any of its content.

    ``overrides`` replace the task's or the model's options, by name; a ValueError says that there is no such option.
    With ``averaged``, the weights are the moving average that ``--store-ema`` stored. A CheckpointError says that the
    file is damaged, contains another model, or has content that training does not write; or that an override is no
    value of its option.
    """
    register_names()  # the tasks whose names a checkpoint may hold
    state = averaged_state(read_state(path), path) if averaged else read_state(path)
    sections = plain_sections(state, path)
    weights = state.pop("model")
    check_weights(weights, path)
    changes = dict(overrides or {})
    task = _options(sections, path, "task", loadable_tasks(), TASK_DATACLASS_REGISTRY.get, changes)
    model = _options(sections, path, "model", ("maelm", *SIZES), lambda name: MaelmModelConfig, changes)
    model.update({name: value for name, value in _OF_THE_MACHINE.items() if name not in changes})
    if unknown := [name for name in changes if name not in {**task, **model} or name.startswith("_")]:
        raise ValueError(f"{unknown[0]!r} is an option of neither the task {task['_name']} nor the model")
    config = OmegaConf.create({**sections, "task": task, "model": model})
    complete_config(config.model)
    _check_model(config.model, weights, path, [name for name in overrides or {} if name in config.model])
    _check_task(config.task, config.model, weights, path)
    return Checkpoint(path, config, weights, state)


_described: dict[tuple[Path, int, int], Checkpoint] = {}


def describe_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint without keeping its weights: their names and shapes alone, and settings.

    A command asks for them in several places; the file is read once in a process, unless it changes.
    """
    key = _state_of(path)
    if key not in _described:
        found = read_checkpoint(path)
        weights = {name: each.to("meta") if each.is_floating_point() else each for name, each in found.weights.items()}
        _described.clear()
        _described[key] = replace(found, weights=weights, state={})
    return replace(_described[key], config=copy.deepcopy(_described[key].config))


def is_described(path: Path) -> bool:
    """Return whether this process has read and verified a file, as it is now."""
    return path.exists() and _state_of(path) in _described


def _state_of(path: Path) -> tuple[Path, int, int]:
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    state = path.stat()
    return path.resolve(), state.st_mtime_ns, state.st_size


def loadable_tasks() -> tuple[str, ...]:
    """Return the tasks whose checkpoints may be loaded: this package's tasks and fairseq's sentence_prediction.

    None of these tasks evaluates an option as code.
    """
    ours = (name for name, task in TASK_REGISTRY.items() if task.__module__.startswith("fairseq_maelm."))
    return (*sorted(ours), "sentence_prediction")


def _options(
    sections: dict[str, dict[str, Any]],
    path: Path,
    section: str,
    names: tuple[str, ...],
    dataclass_of: Any,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a section's name and declared options, with ``changes`` and with references resolved."""
    values = sections.get(section, {})
    name = values.get("_name")
    if name not in names:
        raise CheckpointError(
            f"{path} is a checkpoint of the {section} {shown(name)}, but only those of {', '.join(names)} can be loaded"
        )
    dataclass = dataclass_of(name)
    options = declared_options({**_elsewhere(dataclass, sections), **values, **changes}, dataclass, path, section)
    return {"_name": name, **{option: _escaped(value) for option, value in options.items()}}


def _elsewhere(dataclass: Any, sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the values of options whose defaults refer to other sections, such as ``${common.seed}``."""
    values = {}
    for name, field in dataclass.__dataclass_fields__.items():
        section, _, option = _reference(field).partition(".")
        if option in sections.get(section, {}):
            values[name] = sections[section][option]
    return values


def _reference(field: "Field[Any]") -> str:
    default = "" if field.default is MISSING else str(field.default)
    return default[2:-1] if default.startswith("${") else ""


def _escaped(value: Any) -> Any:
    """Escape what looks like a reference to an option or an environment variable, as the path of the data may."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _check_model(model: Any, weights: dict[str, Tensor], path: Path, changed: Sequence[str]) -> None:
    """Refuse options that are wrong or do not match the weights; ``changed`` are those that the caller replaced."""
    if SETTINGS not in weights:
        raise CheckpointError(f"{path} is not a checkpoint of the model maelm: its settings are missing")
    try:
        saved_settings(weights)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    try:
        check_config(model)
    except (ValueError, TypeError) as error:
        holds = f"{path}, with another {' and '.join(changed)}, has" if changed else f"{path} holds"
        raise CheckpointError(f"{holds} options that do not describe a valid model: {error}") from None
    check_depth(path, "encoder_layers", model.encoder_layers, weights, "encoder.layers.")
    check_sizes(path, model, weights, EncoderOptions.of(model).sizes())
    if any(name.startswith("lm_head.") for name in weights):
        own_layers = 0 if str(model.decoder_attention) == "shared" else model.decoder_layers
        check_depth(path, "decoder_layers", own_layers, weights, "decoder.layers.")
        if own_layers:
            check_sizes(path, model, weights, _DECODER_SIZES)
            if model.decoder_positions != "rotary" and not model.share_decoder_positions:
                check_sizes(path, model, weights, _DECODER_POSITIONS)


def check_sizes(path: Path, options: Any, weights: dict[str, Tensor], sizes: dict[str, tuple[str, int]]) -> None:
    """Refuse sizes that do not match the weights, before memory is allocated for them.

    ``sizes`` maps an attribute of ``options`` to a weight's name and the index of its dimension that must equal it.
    """
    for option, (name, dimension) in sizes.items():
        weight = weights.get(name)
        if weight is None or weight.dim() <= dimension:
            raise CheckpointError(f"{path} is not a complete checkpoint: its {name} is missing")
        if weight.shape[dimension] != getattr(options, option):
            raise CheckpointError(
                f"{path} says {option} {getattr(options, option)}, but its {name} has the size "
                f"{weight.shape[dimension]}"
            )


def check_depth(path: Path, option: str, layers: int, weights: dict[str, Tensor], prefix: str) -> None:
    """Refuse a number of layers that does not match the weights or is out of range."""
    if layers > _DEEPEST:
        raise CheckpointError(f"{path} says {option} {layers}, but at most {_DEEPEST} layers are supported")
    numbers = map(re.compile(re.escape(prefix) + r"(\d{1,6})\.").match, weights)
    stored = sorted({int(number[1]) for number in numbers if number})
    if stored != list(range(min(layers, len(stored) + 1))):
        raise CheckpointError(f"{path} says {option} {layers}, but holds weights of {len(stored)} layers")


def _check_task(task: Any, model: Any, weights: dict[str, Tensor], path: Path) -> None:
    """Refuse a sentence_prediction task whose class count or position count does not match the weights."""
    heads = classification_heads(weights)
    if any("." in name for name in heads):
        raise CheckpointError(f"{path} holds a head with a dot in its name")
    if task._name != "sentence_prediction":
        return
    name = task.get("classification_head_name")
    classes = heads[name][0] if name in heads else None
    if classes is None or task.get("num_classes") != classes:
        raise CheckpointError(
            f"{path} says that the head {shown(name)} has {shown(task.get('num_classes'))} classes, but its weights "
            f"have {classes or 'none'}"
        )
    if task.get("max_positions", model.max_positions) != model.max_positions:
        raise CheckpointError(
            f"{path} sets max_positions to {task.max_positions} for the task, but to {model.max_positions} for the "
            "model"
        )
