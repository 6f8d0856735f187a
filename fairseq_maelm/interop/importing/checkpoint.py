"""Convert imported models to checkpoints without training state, and to arguments of fairseq-train."""

from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf, open_dict

from fairseq_maelm.architecture.checks import check_config
from fairseq_maelm.architecture.config import MaelmModelConfig, complete_config
from fairseq_maelm.architecture.encoder_options import DEFAULT_SIZE, SIZES
from fairseq_maelm.checkpoints.fit import SETTINGS, model_settings, pack_settings
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.interop.importing.source import MLM_TASK, Source
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.models.build import build_model
from fairseq_maelm.tasks.maelm import MaelmTaskConfig


def fairseq_options(model: dict[str, Any]) -> list[str]:
    """Return the arguments of fairseq-train that build a model: --arch, and all options with non-default values.

    The default of an option may depend on another option: --local-rotary-base defaults to --rotary-base.
    """

    def agrees(size: dict[str, Any]) -> bool:
        return all(model.get(name, value) == value for name, value in size.items() if not name.startswith("decoder_"))

    arch = next((name for name, size in SIZES.items() if agrees(size)), DEFAULT_SIZE)
    given: dict[str, Any] = {}
    # In declaration order: options are declared after the options that their defaults depend on.
    for name in [name for name in MaelmModelConfig.__dataclass_fields__ if name in model]:
        config = MaelmModelConfig(_name=arch, **given)
        complete_config(config)
        if getattr(config, name) != model[name]:
            given[name] = model[name]
    return arguments_of({"arch": arch, **given})


def arguments_of(options: dict[str, Any]) -> list[str]:
    """Return options of the model or the task ``maelm`` as arguments of fairseq-train."""
    return words_of({name.replace("_", "-"): value for name, value in options.items()})


def converted(source: Source, dictionary: Any, folder: Path) -> LoadedCheckpoint:
    """Convert a source to the checkpoint to be saved in ``folder``; ``dictionary`` includes <mask>."""
    weights, order = dict(source.weights), source.vocabulary.order
    if order != list(range(len(order))):
        for name in ("encoder.embed_tokens.weight", "lm_head.bias"):
            if name in weights:
                weights[name] = weights[name][torch.tensor(order)]
    # Without copying, every slice would hold the whole storage.
    weights = {name: weight.detach().clone() for name, weight in weights.items()}
    config = _configuration(source)
    check_config(config.model)
    weights[SETTINGS] = pack_settings(model_settings(config.model, dictionary))
    checkpoint = Checkpoint(folder / CHECKPOINT_FILE, config, weights, state={})
    return LoadedCheckpoint(checkpoint, build_model(checkpoint, dictionary), dictionary, folder)


def _configuration(source: Source) -> Any:
    """Return a config with the sections "task" and "model", with all defaults that fairseq-train would fill in."""
    tokens = source.options["max_positions"]
    # The data folder is given when the checkpoint is loaded.
    task = MaelmTaskConfig(_name="maelm", data=".", tokens_per_sample=tokens, **MLM_TASK)
    model = MaelmModelConfig(_name=fairseq_options(source.options)[1], **source.options)
    config = OmegaConf.create(OmegaConf.structured(FairseqConfig(task=task, model=model)))
    with open_dict(config):
        complete_config(config.model)
    whole: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return OmegaConf.create({section: whole[section] for section in ("task", "model")})
