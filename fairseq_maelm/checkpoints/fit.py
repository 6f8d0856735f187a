"""Fit a checkpoint's weights to a model: log what is dropped, and explain what does not fit."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.checkpoints.plain_data import CheckpointError
from fairseq_maelm.modules.finetuning_heads import POOLING

logger = logging.getLogger(__name__)

# The name of the model's settings in a state dictionary, by torch's rule for ``get_extra_state``.
SETTINGS = "_extra_state"
_MAX_SETTINGS = 10_000  # characters
_HEADS = "classification_heads."
# Largest ratio of the parameters of a model to those of its checkpoint, which may lack small heads.
_SLACK = 2
_PREDICTION = ("decoder.", "lm_head.")


def fit_state_dict(model: Any, state_dict: dict[str, Tensor]) -> None:
    """Prepare a state dictionary for strict loading, in place.

    For a model without an LM head (fine-tuning), the checkpoint's decoder and LM head are dropped. For other models,
    a missing decoder (as in imported MLMs) is added as a copy of encoder layers, or with random weights if widths
    differ; a missing LM head (as in sentence encoders and fine-tuned models) is added with random weights.
    Classification heads are dropped if the model has no such head of the same size, or if it does not take any; heads
    that the checkpoint lacks keep their weights.
    """
    _check_settings(model, state_dict)
    if model.lm_head is None:
        _drop(state_dict, [key for key in state_dict if key.startswith(_PREDICTION)], "not needed for fine-tuning")
    else:
        parts = {"LM head": "lm_head."}
        if model.decoder is not None and model.decoder.layers:
            parts = {"decoder": "decoder.", **parts}
        lacking = [part for part, prefix in parts.items() if not any(key.startswith(prefix) for key in state_dict)]
        if lacking:
            _begin_prediction(model, state_dict, lacking)
        is_shared = model.decoder is not None and model.decoder.attention == "shared"
        if is_shared and "decoder_attention" not in saved_settings(state_dict):
            layers = len(model.decoder.decoding_layers)
            logger.info("the checkpoint has no decoder: %d encoder layers now also decode", layers)
    _fit_heads(model, state_dict)
    _check_shapes(model, state_dict)


def dictionary_fingerprint(dictionary: Any) -> int:
    """Return a number in [0, 2^63) that depends on every symbol of the vocabulary and on their order."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def model_settings(config: Any, dictionary: Any) -> dict[str, Any]:
    """Return the settings that weights depend on but weight shapes do not show: vocabulary and options."""
    options, names = EncoderOptions.of(config).saved(), list[str]()
    if config.decoder_layers:
        names += ["decoder_attention", "decoder_attention_heads", "decoder_positions"]
        if str(config.decoder_attention) == "shared":
            names.append("decoder_layers")
        if str(config.decoder_positions) == "rotary" and "rotary_base" not in options:
            names.append("rotary_base")
    values = {name: getattr(config, name) for name in names}
    options |= {name: value if isinstance(value, int) else str(value) for name, value in values.items()}
    return {"vocabulary": dictionary_fingerprint(dictionary), **options}


def pack_settings(settings: dict[str, Any]) -> Tensor:
    """Encode settings as JSON in a tensor <int64>[characters], because readers of a state dictionary expect tensors."""
    return torch.tensor(list(json.dumps(settings).encode("ascii")), dtype=torch.int64)


def saved_settings(state_dict: dict[str, Tensor]) -> dict[str, Any]:
    """Return the settings in a state dictionary, which may be untrusted."""
    packed = state_dict.get(SETTINGS)
    if packed is None:
        raise ValueError("this is not a checkpoint of the model maelm: its settings are missing")
    try:
        if packed.dtype != torch.int64 or packed.dim() != 1 or len(packed) > _MAX_SETTINGS:
            raise ValueError
        settings = json.loads(bytes(packed.tolist()))
        vocabulary = settings["vocabulary"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("the checkpoint's settings cannot be read: it is damaged") from None
    if not isinstance(vocabulary, int):
        raise ValueError("the checkpoint's settings cannot be read: it is damaged")
    return settings


def classification_heads(state_dict: dict[str, Tensor]) -> dict[str, list[int]]:
    """Return the heads of a checkpoint: name -> [number of classes, inner width]."""
    suffix = ".out_proj.weight"
    return {
        key[len(_HEADS) : -len(suffix)]: list(weight.shape)
        for key, weight in state_dict.items()
        if key.startswith(_HEADS) and key.endswith(suffix)
    }


def register_heads(model: Any, state_dict: dict[str, Tensor]) -> None:
    """Add a checkpoint's heads to a model, with random weights; keep the model's heads of the same name and size."""
    own = model.classification_heads.state_dict()
    for name, (outputs, inner_dim) in classification_heads(state_dict).items():
        if _same_head(own, state_dict, name):
            continue
        # Heads of tokens have no dense layer of such a name.
        poolings = [each for each, dense in POOLING.items() if f"{_HEADS}{name}.{dense}.weight" in state_dict]
        if poolings:
            model.register_classification_head(name, outputs, inner_dim, pooling=poolings[0])
        else:
            model.register_token_head(name, outputs)


def build_with_heads(build: Callable[[], Any], weights: dict[str, Tensor], path: Path) -> Any:
    """Build a model with a checkpoint's heads; ``path`` is for messages.

    The number of parameters is checked first, on the meta device: a model with over twice as many as the checkpoint is
    refused before memory is allocated for it.
    """
    with torch.device("meta"):
        model = build()
        register_heads(model, weights)
    asked = sum(parameter.numel() for parameter in model.parameters())
    held = sum(weight.numel() for weight in weights.values())
    if asked > _SLACK * held:
        raise CheckpointError(
            f"{path} holds {held:,} parameters, but a model with this dict.txt has {asked:,}: use the dict.txt of the "
            "checkpoint"
        )
    model = build()
    register_heads(model, weights)
    return model


def _same_head(own: dict[str, Tensor], state_dict: dict[str, Tensor], name: str) -> bool:
    theirs = {key[len(_HEADS) :]: tensor for key, tensor in state_dict.items() if key.startswith(f"{_HEADS}{name}.")}
    mine = {key: tensor for key, tensor in own.items() if key.startswith(f"{name}.")}
    return theirs.keys() == mine.keys() and all(mine[key].shape == tensor.shape for key, tensor in theirs.items())


def _drop(state_dict: dict[str, Tensor], keys: list[str], reason: str) -> None:
    if keys:
        parameters = sum(state_dict[key].numel() for key in keys)
        parts = sorted({key.split(".")[0] for key in keys})
        logger.info("dropping %s of the checkpoint (%s parameters): %s", ", ".join(parts), f"{parameters:,}", reason)
    for key in keys:
        del state_dict[key]


def _begin_prediction(model: Any, state_dict: dict[str, Tensor], lacking: list[str]) -> None:
    """Add a missing decoder or LM head to a checkpoint's weights, and replace LM head weights of another width.

    The decoder starts as a copy of the encoder's last full-attention layers. It then predicts from the first updates
    on, and the encoder's states keep their meaning (docs/guides/adaptation.md).
    """
    own = {key: weight for key, weight in model.state_dict().items() if key.startswith(_PREDICTION)}
    begun = [key for key in own if key not in state_dict or state_dict[key].shape != own[key].shape]
    _drop(state_dict, [key for key in state_dict if key.startswith("lm_head.") and key not in own], "of another width")
    copies = _copies_of_encoder(model, own, state_dict) if "decoder" in lacking else {}
    state_dict.update({key: copies.get(key, own[key]) for key in begun})
    copied, parameters = (sum(own[key].numel() for key in keys) for keys in (copies, begun))
    logger.info(
        "the checkpoint has no %s: this part of the model is new, with %s of its %s parameters copied from the "
        "encoder's last layers",
        " and no ".join(lacking),
        f"{copied:,}",
        f"{parameters:,}",
    )


def _copies_of_encoder(model: Any, own: dict[str, Tensor], state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the decoder weights that can be copied from an encoder of the same width."""
    config = model.config
    for size in ("embed_dim", "attention_heads"):
        if getattr(config, f"decoder_{size}") != getattr(config, f"encoder_{size}"):
            return {}
    whole = [str(number) for number, layer in enumerate(model.encoder.layers) if layer.self_attn.window is None]
    sources = dict(zip(reversed(range(len(model.decoder.layers))), reversed(whole)))
    copies = {}
    for key in own:
        parts = key.replace("cross_attn", "self_attn").split(".")
        if parts[1] == "layers":
            parts[2] = sources.get(int(parts[2]), "")
        name, rows = ".".join(["encoder", *parts[1:]]), slice(None)
        if parts[-2] in ("q_proj", "kv_proj"):  # one matrix in self-attention
            name = name.replace(parts[-2], "qkv_proj")
            width = config.encoder_embed_dim
            rows = slice(width) if parts[-2] == "q_proj" else slice(width, None)
        weight = state_dict.get(name)
        if parts[0] == "decoder" and weight is not None and weight[rows].shape == own[key].shape:
            copies[key] = weight[rows].clone()
    return copies


def _fit_heads(model: Any, state_dict: dict[str, Tensor]) -> None:
    own = model.classification_heads.state_dict()
    for name, (classes, _) in classification_heads(state_dict).items():
        if not (model.takes_heads and _same_head(own, state_dict, name)):
            weight = own.get(f"{name}.out_proj.weight")
            logger.warning(
                "head %r of the checkpoint (%d outputs) is dropped: the model %s",
                name,
                classes,
                "has no such head" if weight is None else f"has a new one with {weight.shape[0]} outputs",
            )
            for key in [key for key in state_dict if key.startswith(f"{_HEADS}{name}.")]:
                del state_dict[key]
    for key, weight in own.items():
        state_dict.setdefault(_HEADS + key, weight)


def _check_settings(model: Any, state_dict: dict[str, Tensor]) -> None:
    """Compare model and checkpoint settings by name; decoder settings only if both predict by a decoder."""
    saved, own = saved_settings(state_dict), model_settings(model.config, model.encoder.dictionary)
    symbols = model.encoder.embed_tokens.num_embeddings
    embedding = state_dict.get("encoder.embed_tokens.weight")
    if embedding is not None and len(embedding) != symbols:
        raise ValueError(
            f"the checkpoint's vocabulary has {len(embedding)} symbols, but the data's has {symbols}: use the "
            "dict.txt that the checkpoint was trained with"
        )
    if saved["vocabulary"] != own.pop("vocabulary"):
        raise ValueError(
            "the checkpoint was trained with another vocabulary of the same size: the data must be prepared with the "
            "checkpoint's sentencepiece.bpe.model and dict.txt"
        )
    predicts = model.lm_head is not None and any(key.startswith("lm_head.") for key in state_dict)
    if predicts and model.decoder is None and saved.get("decoder_attention") == "shared":
        raise ValueError(
            "the checkpoint was trained with --decoder-attention shared, and the model has no decoder to predict "
            "tokens that the encoder does not see: omit --decoder-layers 0"
        )
    for name, value in own.items():
        compared = predicts and model.decoder is not None or not name.startswith("decoder_")
        if compared and saved.get(name, value) != value:
            raise ValueError(
                f"the checkpoint was trained with --{name.replace('_', '-')} {saved[name]}, not {value}: pass the "
                "same --arch and model options as in pretraining"
            )


def _check_shapes(model: Any, state_dict: dict[str, Tensor]) -> None:
    own = model.state_dict()
    wrong = [
        f"{key} is {list(state_dict[key].shape)} and should be {list(own[key].shape)}"
        for key in own
        if key != SETTINGS and key in state_dict and state_dict[key].shape != own[key].shape
    ]
    missing = [key for key in own if key not in state_dict]
    surplus = [key for key in state_dict if key not in own]
    if wrong or missing or surplus:
        shown = wrong + [f"{key} is missing" for key in missing] + [f"{key} is not in the model" for key in surplus]
        raise ValueError(
            f"the checkpoint and the model have different sizes ({len(shown)} differences; the first: {shown[0]}): "
            "pass the same --arch and options of layers and positions as in the checkpoint's training"
        )
