"""Conversion of imported models to checkpoints in the form that fairseq's trainer writes."""

from types import SimpleNamespace
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_maelm.checkpoints.fit import SETTINGS, model_settings, pack_settings
from fairseq_maelm.interop.importing.source import Source
from fairseq_maelm.models.config import MaelmModelConfig, complete_config
from fairseq_maelm.models.sizes import DEFAULT_SIZE, SIZES
from fairseq_maelm.tasks.maelm import MaelmTaskConfig


def fairseq_options(model: dict[str, Any]) -> list[str]:
    """Return the words for fairseq-train that build a model: --arch, and the options that differ from their defaults.

    The default of an option may follow from another one, as that of --local-rotary-base from --rotary-base.
    """

    def agrees(size: dict[str, int]) -> bool:
        return all(model.get(name, number) == number for name, number in size.items() if name != "decoder_layers")

    arch = next((name for name, size in SIZES.items() if agrees(size)), DEFAULT_SIZE)
    given: dict[str, Any] = {}
    # In the order of their declaration, in which an option is declared after those that its default follows from.
    for name in [name for name in MaelmModelConfig.__dataclass_fields__ if name in model]:
        config = MaelmModelConfig(_name=arch, **given)
        complete_config(config)
        if getattr(config, name) != model[name]:
            given[name] = model[name]
    words = ["--arch", arch]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def task_options(options: dict[str, Any]) -> list[str]:
    """Return options of the task maelm as words for fairseq-train."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def build_state(source: Source, dictionary: Any) -> dict[str, Any]:
    """Return the content of the checkpoint; ``dictionary`` is the result's, with <mask>."""
    model, order = source.options, source.vocabulary.order
    weights = dict(source.weights)
    if order != list(range(len(order))):
        for name in ("encoder.embed_tokens.weight", "lm_head.bias"):
            if name in weights:
                weights[name] = weights[name][torch.tensor(order)]
    # Without copying, torch would save the whole storage of every slice.
    weights = {name: weight.detach().clone() for name, weight in weights.items()}
    state = untrained_state(weights, fairseq_options(model)[1], model, source.task_options)
    config = SimpleNamespace(**state["cfg"]["model"])
    weights[SETTINGS] = pack_settings(model_settings(config, dictionary))
    return state


def untrained_state(
    weights: dict[str, Tensor], arch: str, model_options: dict[str, Any], task_options: dict[str, Any]
) -> dict[str, Any]:
    """Return a checkpoint of the task maelm as fairseq's trainer writes it, before its first update.

    Args:
        weights: the model's whole state dictionary.
        arch: name of the size, which gives options that ``model_options`` lack.
        model_options: options of the model ``maelm``, name -> value.
        task_options: options of the task ``maelm``, name -> value.
    """
    tokens = model_options.get("max_positions", MaelmModelConfig.max_positions)
    # The data folder is given when the checkpoint is loaded.
    task = MaelmTaskConfig(_name="maelm", data=".", tokens_per_sample=tokens, **task_options)
    model = MaelmModelConfig(_name=arch, **model_options)
    configuration = OmegaConf.create(OmegaConf.structured(FairseqConfig(task=task, model=model)))
    with open_dict(configuration):
        complete_config(configuration.model)
        configuration.criterion = {"_name": "maelm"}
    return {
        "args": None,
        "cfg": OmegaConf.to_container(configuration, resolve=True, enum_to_str=True),
        "model": weights,
        "criterion": {},
        # Optimizer, schedule and data start from the beginning.
        "optimizer_history": [
            {"criterion_name": "MaelmCriterion", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
    }
