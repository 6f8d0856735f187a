"""Checkpoints whose weights an export changes: rounded, scaled, mixed with their source, or without decoder.

Weights between a checkpoint and its source share a low loss because training from the source is short, and the mean
forgets less of what the source knew (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models").
"""

import copy
import math

import numpy as np
import torch
from fairseq import tasks
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_maelm.architecture.config import MaelmModelConfig
from fairseq_maelm.checkpoints.fit import SETTINGS, model_settings, pack_settings
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.interop.export.formats import Mix
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.models.hub import SENTENCE_HEAD
from fairseq_maelm.models.labels import Numbers

_SEQUENCES, _BATCH, _SEED = 256, 8, 1  # held-out sequences, those of a batch, and the seed of their choice


def cast_floats(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Cast floating-point weights to a dtype; integers are unchanged."""
    return {name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in weights.items()}


def rounded(source: LoadedCheckpoint) -> LoadedCheckpoint:
    """Round the source's weights to float16 and return them as <float32>; raise ValueError for too large values."""
    weights = cast_floats(cast_floats(source.checkpoint.weights, torch.float16), torch.float32)
    if large := [name for name, weight in weights.items() if not bool(weight.isfinite().all())]:
        raise ValueError(f"{large[0]} has numbers beyond {torch.finfo(torch.float16).max:,.0f}: omit --dtype float16")
    return source.changed(weights)


def in_units_of_data(source: LoadedCheckpoint) -> LoadedCheckpoint:
    """Multiply the last layer of a head that predicts numbers by the scale of the data, which others do not know."""
    scale = source.labels.scale if isinstance(source.labels, Numbers) else None
    if scale in (None, 1.0):
        return source
    last = f"classification_heads.{SENTENCE_HEAD}.out_proj."
    weights = {
        name: weight * scale if name.startswith(last) else weight for name, weight in source.checkpoint.weights.items()
    }
    return source.changed(weights)


def mixed(trained: LoadedCheckpoint, mix: Mix) -> LoadedCheckpoint:
    """Return ``trained`` with the weighted mean of its weights and those of the checkpoint from which it was trained.

    Weights that only ``trained`` has stay as they are, and so do heads, which fine-tuning never takes over. A
    ValueError says that the encoders have other sizes or another vocabulary.
    """
    (path, share), checkpoint = mix, trained.checkpoint
    source = read_checkpoint(path)
    if source.vocabulary != checkpoint.vocabulary:
        raise ValueError(f"--mix: {path} has another vocabulary than {checkpoint.path}: give the checkpoint's source")
    for name, value in checkpoint.encoder_options.items():
        theirs = source.encoder_options[name]
        # The name of an architecture only fills in sizes.
        if name != "arch" and theirs != value:
            raise ValueError(
                f"--mix: the encoder of {path} has {name} {theirs}, and that of {checkpoint.path} {value}: give the "
                "checkpoint's source"
            )
    heads = "classification_heads."
    old = {name: each for name, each in source.weights.items() if name != SETTINGS and not name.startswith(heads)}
    weights = {
        name: share * old[name].float() + (1.0 - share) * weight.float()
        if name in old and old[name].shape == weight.shape and weight.is_floating_point()
        else weight
        for name, weight in checkpoint.weights.items()
    }
    return trained.changed(weights)


def mixing_section(mix: Mix) -> str:
    """Return the model card's section about the mean of two checkpoints' weights."""
    return (
        f"## Mixed weights\n\nEach weight is {mix.share:g} times that of `{mix.source.parent.name}`, from which the "
        f"training above started, plus {1.0 - mix.share:g} times that of the trained checkpoint. What only the "
        "trained checkpoint has is as trained."
    )


def without_decoder(source: LoadedCheckpoint) -> LoadedCheckpoint:
    """Turn a checkpoint with a decoder into an MLM: an encoder that reads masks, followed by the LM head."""
    path, model = source.checkpoint.path, source.model
    if model.decoder is None or model.lm_head is None:
        raise ValueError(f"--with-mlm-head leaves out the decoder, but {path} has none: omit the option")
    if model.decoder.autoregressive or model.lm_head.dense.in_features != source.options.encoder_embed_dim:
        raise ValueError(f"the LM head of {path} works only with the decoder: omit --with-mlm-head")
    config = copy.deepcopy(source.checkpoint.config)
    for name, field in MaelmModelConfig.__dataclass_fields__.items():
        if name.startswith("decoder_"):
            config.model[name] = field.default
    config.model.decoder_layers = 0
    config.task.update({"masked_input": "kept", "encoder_mask_fraction": 0.0, "encoder_positions": "original"})
    weights = {name: each for name, each in source.checkpoint.weights.items() if not name.startswith("decoder.")}
    weights[SETTINGS] = pack_settings(model_settings(config.model, source.dictionary))
    return source.changed(weights, config)


def measure(source: LoadedCheckpoint, mlm: LoadedCheckpoint) -> str:
    """Describe a checkpoint's validation loss with and without its decoder, for the log and the model card."""
    (alone, tokens), (through, _) = _loss(mlm), _loss(source)
    return (
        f"loss in bits per masked token: {alone:.2f} with masks in the input and no decoder, {through:.2f} with the "
        f"decoder ({alone - through:+.2f}; {tokens:,} held-out tokens)"
    )


@torch.no_grad()
def _loss(source: LoadedCheckpoint) -> tuple[float, int]:
    """Return the mean loss in bits, on blocks and masks as in the validations of training, and the number of masks."""
    options, length = source.checkpoint.config.task, source.model.max_positions()
    changed = {
        "_name": "maelm",
        "data": str(source.data),
        "general_data": None,
        "general_ratio": 0.0,
        "general_loss_bound": None,
        "tokens_per_sample": min(length, options.get("tokens_per_sample") or length),
    }
    try:
        task = tasks.setup_task(OmegaConf.merge(options, changed), from_checkpoint=True)
        data = task.open_split("valid", False, 1, False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"--with-mlm-head measures the head on held-out text, but there is none in {source.data}: give the folder "
            "of the prepared text as --vocabulary"
        ) from error
    chosen = np.random.default_rng(_SEED).permutation(len(data))[:_SEQUENCES]
    nats, tokens = 0.0, 0
    for begin in range(0, len(chosen), _BATCH):
        batch = data.collate(np.sort(chosen[begin : begin + _BATCH]))
        nats += float(source.model(**batch["net_input"], target=batch["target"])[0])
        tokens += batch["target"].numel()
    return nats / tokens / math.log(2), tokens
