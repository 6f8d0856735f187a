"""Apply an MAE-LM's LM head directly to the encoder, without the decoder, and measure the resulting loss."""

import copy
import math
from dataclasses import replace

import numpy as np
import torch
from fairseq import tasks
from omegaconf import OmegaConf

from fairseq_maelm.architecture.config import MaelmModelConfig
from fairseq_maelm.checkpoints.fit import SETTINGS, model_settings, pack_settings
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.models.build import build_model

# Held-out sequences, those of a batch, and the seed of their choice.
_SEQUENCES, _BATCH, _SEED = 256, 8, 1


def without_decoder(source: LoadedCheckpoint) -> LoadedCheckpoint:
    """Turn a checkpoint with a decoder into an MLM: an encoder that reads masks, followed by the LM head.

    Raises:
        ValueError: the checkpoint has no decoder, or its LM head fits only the decoder.
    """
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
    checkpoint = replace(source.checkpoint, config=config, weights=weights)
    return replace(source, checkpoint=checkpoint, model=build_model(checkpoint, source.dictionary))


def measure(source: LoadedCheckpoint, mlm: LoadedCheckpoint) -> str:
    """Describe a checkpoint's validation loss with and without its decoder, for the log and the model card.

    Raises:
        FileNotFoundError: the folder of the vocabulary has no validation set.
    """
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
