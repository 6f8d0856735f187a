"""Reading a checkpoint of this package's model: the one way for everything but the resuming of a training.

A checkpoint may come from a stranger. Its configuration names a task and a model, which fairseq would build whatever
they are, evaluating strings and resolving references as it goes. Here the configuration is data: only names from a list
are taken, only declared options, each of its type and range, and only sizes that the weights in the file have.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any

from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_maelm.checkpoint_data import (
    CheckpointError,
    averaged_state,
    check_weights,
    declared_options,
    numbered,
    plain_sections,
    read_state,
    shown,
)
from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.models.checkpoint import classification_heads
from fairseq_maelm.models.checks import check_config
from fairseq_maelm.models.config import ENCODER_OPTIONS, MaelmModelConfig, complete_config
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.registration import register

__all__ = ["TASKS", "Checkpoint", "CheckpointError", "check_depth", "check_sizes", "read_checkpoint"]

# Tasks whose checkpoints hold our model. None of them evaluates an option.
TASKS = (
    "maelm",
    "maelm_adaptation",
    "maelm_prompt",
    "maelm_retrieval",
    "maelm_sentences",
    "maelm_squad",
    "maelm_tagging",
    "sentence_prediction",
)

# How the model was computed in training is nothing to the machine that loads it.
_OF_THE_MACHINE = {"attention": "auto", "precision": "fp32", "compile": False, "checkpoint_activations": False}
# Option -> a weight, and the dimension of it that the option is the size of.
_ENCODER_SIZES = {
    "encoder_embed_dim": ("encoder.embed_tokens.weight", 1),
    "encoder_ffn_embed_dim": ("encoder.layers.0.fc2.weight", 1),
}
_POSITIONS = {"max_positions": ("encoder.embed_positions.weight", 0)}
_BUCKETS = {"relative_num_buckets": ("encoder.relative_attention_bias.weight", 0)}
_DECODER_SIZES = {
    "decoder_embed_dim": ("decoder.layernorm_embedding.weight", 0),
    "decoder_ffn_embed_dim": ("decoder.layers.0.fc2.weight", 1),
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has passed all checks.

    Attributes:
        path: of the file.
        config: sections of fairseq's configuration, plain values all of them. "task" and "model" hold their declared
            options and ``_name``, the model's complete.
        weights: of the model, by name.
        state: what else the file holds, as it is: optimizer, history of training.
    """

    path: Path
    config: DictConfig
    weights: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def task_name(self) -> str:
        """The name under which the task is registered."""
        return str(self.config.task._name)

    @property
    def predicts_masked_tokens(self) -> bool:
        """Whether there is a prediction head, as after pretraining."""
        return any(name.startswith("lm_head.") for name in self.weights)

    @property
    def vocabulary(self) -> int:
        """A number that is another for any other vocabulary; see ``dictionary_fingerprint``."""
        return int(self.weights["encoder.identity"][0])

    @property
    def heads(self) -> dict[str, list[int]]:
        """The fine-tuned heads: name -> [number of outputs, inner width]."""
        return classification_heads(self.weights)

    @property
    def encoder_options(self) -> dict[str, Any]:
        """The options of the model that build the encoder, by name, that of its size as ``arch``."""
        model = self.config.model
        return {"arch": model._name, **{name: getattr(model, name) for name in ENCODER_OPTIONS}}

    @property
    def view(self) -> EncoderView:
        """What the encoder saw of masks in pretraining.

        Tasks that do not mask do not say: then nothing, or, where no decoder could fill masks in, the mask itself.
        """
        task = self.config.task
        default = "dropped" if "decoder.identity" in self.weights or not self.predicts_masked_tokens else "kept"
        return EncoderView(
            str(task.get("masked_input") or default),
            float(task.get("encoder_mask_fraction") or 0.0),
            str(task.get("encoder_positions") or "original"),
        )

    @property
    def history(self) -> dict[str, Any]:
        """What the file says of its training: ``num_updates``, ``epoch``, ``val_loss``, ``best``, ``training_seconds``.

        What it does not say is left out.
        """
        extra, made = self.state.get("extra_state", {}), self.state.get("optimizer_history") or [{}]
        found = {
            "num_updates": made[-1].get("num_updates"),
            "epoch": extra.get("train_iterator", {}).get("epoch"),
            "val_loss": extra.get("val_loss"),
            "best": extra.get("best"),
            "training_seconds": extra.get("previous_training_time"),
        }
        return {name: value for name, value in found.items() if value is not None}


def read_checkpoint(path: Path, overrides: Mapping[str, Any] | None = None, averaged: bool = False) -> Checkpoint:
    """Read a checkpoint of pretraining or fine-tuning as inert data.

    Args:
        path: of the file.
        overrides: option of the task or the model -> value in place of the checkpoint's.
        averaged: take the running average of the weights, which ``--store-ema`` kept.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is damaged, holds another model, or anything that no honest checkpoint does.
        ValueError: an override is not an option.
    """
    register()  # the tasks whose names a checkpoint may hold
    state = averaged_state(read_state(path), path) if averaged else read_state(path)
    sections = plain_sections(state, path)
    weights = state.pop("model")
    check_weights(weights, path)
    task = _options(sections, path, "task", TASKS, TASK_DATACLASS_REGISTRY.get)
    model = _options(sections, path, "model", ("maelm", *SIZES), lambda name: MaelmModelConfig)
    model.update(_OF_THE_MACHINE)
    for name, value in (overrides or {}).items():
        _override(task, model, name, value)
    config = OmegaConf.create({**sections, "task": task, "model": model})
    complete_config(config.model)
    _check_model(config.model, weights, path)
    _check_task(config.task, config.model, weights, path)
    return Checkpoint(path, config, weights, state)


def _options(
    sections: dict[str, dict[str, Any]], path: Path, section: str, names: tuple[str, ...], dataclass_of: Any
) -> dict[str, Any]:
    """Return the declared options of a section with its name, references to other sections filled in."""
    found = sections.get(section, {})
    name = found.get("_name")
    if name not in names:
        raise CheckpointError(
            f"{path} is a checkpoint of the {section} {shown(name)}, and only those of {', '.join(names)} are loaded"
        )
    dataclass = dataclass_of(name)
    options = {**_elsewhere(dataclass, sections), **found}
    return {"_name": name, **declared_options(options, dataclass, path, section)}


def _elsewhere(dataclass: Any, sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the values of options that are by default those of other sections, such as ``${common.seed}``."""
    found = {}
    for name, field in dataclass.__dataclass_fields__.items():
        section, _, option = _reference(field).partition(".")
        if option in sections.get(section, {}):
            found[name] = sections[section][option]
    return found


def _reference(field: "Field[Any]") -> str:
    default = "" if field.default is MISSING else str(field.default)
    return default[2:-1] if default.startswith("${") else ""


def _override(task: dict[str, Any], model: dict[str, Any], name: str, value: Any) -> None:
    owners = [
        section
        for section, declared in ((task, TASK_DATACLASS_REGISTRY[task["_name"]]), (model, MaelmModelConfig))
        if name in declared.__dataclass_fields__ and not name.startswith("_")
    ]
    if not owners:
        raise ValueError(f"{name!r} is an option of neither the task {task['_name']} nor the model")
    for owner in owners:
        owner[name] = value


def _check_model(model: Any, weights: dict[str, Tensor], path: Path) -> None:
    if "encoder.identity" not in weights:
        raise CheckpointError(f"{path} is not a checkpoint of the model maelm: its encoder.identity is missing")
    try:
        check_config(model)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} holds options that make no model: {error}") from None
    check_sizes(path, model, weights, _ENCODER_SIZES)
    check_depth(path, "encoder_layers", model.encoder_layers, weights, "encoder.layers.")
    if model.positions != "rotary":
        check_sizes(path, model, weights, _POSITIONS)
    if str(model.relative_buckets) != "none":
        check_sizes(path, model, weights, _BUCKETS)
    if any(name.startswith("lm_head.") for name in weights):
        check_depth(path, "decoder_layers", model.decoder_layers, weights, "decoder.layers.")
        if model.decoder_layers:
            check_sizes(path, model, weights, _DECODER_SIZES)


def check_sizes(path: Path, options: Any, weights: dict[str, Tensor], sizes: dict[str, tuple[str, int]]) -> None:
    """Refuse sizes that the weights do not have, before anything of these sizes is made.

    Args:
        path: of the checkpoint, for messages.
        options: with the sizes as attributes.
        weights: by name.
        sizes: option -> name of a weight, and which of its dimensions.
    """
    for option, (name, dimension) in sizes.items():
        weight = weights.get(name)
        if weight is None or weight.dim() <= dimension:
            raise CheckpointError(f"{path} is not a whole checkpoint: its {name} is missing")
        if weight.shape[dimension] != getattr(options, option):
            raise CheckpointError(
                f"{path} says {option} {getattr(options, option)}, but its {name} has {weight.shape[dimension]}"
            )


def check_depth(path: Path, option: str, layers: int, weights: dict[str, Tensor], prefix: str) -> None:
    """Refuse a number of layers that the weights do not have."""
    found = sorted(numbered(weights, prefix))
    if found != list(range(min(layers, len(found) + 1))):
        raise CheckpointError(f"{path} says {option} {layers}, but holds weights of {len(found)} layers")


def _check_task(task: Any, model: Any, weights: dict[str, Tensor], path: Path) -> None:
    """Refuse a sentence_prediction task whose numbers are not the weights', by which it makes a head and positions."""
    heads = classification_heads(weights)
    if any("." in name for name in heads):
        raise CheckpointError(f"{path} holds a head with a dot in its name")
    if task._name != "sentence_prediction":
        return
    name = task.get("classification_head_name")
    classes = heads[name][0] if name in heads else None
    if classes is None or task.get("num_classes") != classes:
        raise CheckpointError(
            f"{path} says {shown(task.get('num_classes'))} classes of the head {shown(name)}, but holds weights of "
            f"{classes or 'none'}"
        )
    if task.get("max_positions", model.max_positions) != model.max_positions:
        raise CheckpointError(
            f"{path} says max_positions {task.max_positions} of the task, but its model has {model.max_positions}"
        )
