"""Reading the configuration of a Hugging Face folder and refusing what our encoder does not compute."""

import json
from pathlib import Path
from typing import Any

from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.models.checks import LARGEST_EPS, SMALLEST_EPS

# model_type -> how relative positions are computed; None where the configuration says it. "maelm" is what
# `maelm export` writes.
BUCKETS_OF = {"roberta": "none", "xlm-roberta": "none", "camembert": "none", "mpnet": "t5", "maelm": None}

# What stock MPNet computes, whatever its configuration says.
MPNET_BUCKETS, MPNET_MAX_DISTANCE = 32, 128

_SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
}
_DECODER_SIZES = {
    "decoder_embed_dim": "decoder_hidden_size",
    "decoder_ffn_embed_dim": "decoder_intermediate_size",
    "decoder_attention_heads": "decoder_attention_heads",
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there is no config.json in {folder}: give a folder that save_pretrained has written")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no configuration of a model")
    return config


def check_config(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a configuration under which the model computes something else than our encoder.

    Raises:
        ValueError: says what differs.
    """
    kind = config.get("model_type")
    if kind == "roberta-prelayernorm":
        raise refuse(folder, "its LayerNorms stand before the sub-layers, and ours stand behind them")
    if kind not in BUCKETS_OF:
        raise refuse(folder, f"model_type {kind!r} is none of {', '.join(BUCKETS_OF)}")
    eps = _layer_norm_eps(config)
    if not isinstance(eps, float) or not SMALLEST_EPS <= eps <= LARGEST_EPS:
        raise refuse(folder, f"layer_norm_eps is {eps!r} and no number from {SMALLEST_EPS} to {LARGEST_EPS}")
    activation = config.get("hidden_act", "gelu")
    if activation != "gelu":
        raise refuse(folder, f"its activation is {activation!r} and ours is the exact 'gelu'")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise refuse(folder, f"position_embedding_type is {positions!r} and ours is 'absolute'")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise refuse(folder, "it is configured as a decoder")
    if config.get("tie_word_embeddings", True) is not True:
        raise refuse(folder, "tie_word_embeddings is off, and our prediction head uses the token embeddings")
    if kind == "mpnet":
        _check_mpnet(folder, config)


def _layer_norm_eps(config: dict[str, Any]) -> Any:
    # What is missing has transformers' default, which differs from ours.
    return config.get("layer_norm_eps", 1e-12)


def _check_mpnet(folder: Path, config: dict[str, Any]) -> None:
    buckets = config.get("relative_attention_num_buckets", MPNET_BUCKETS)
    if buckets != MPNET_BUCKETS:
        raise refuse(
            folder,
            f"relative_attention_num_buckets is {buckets}; MPNetModel computes {MPNET_BUCKETS} buckets up to the "
            f"distance {MPNET_MAX_DISTANCE} whatever the configuration says, so that nobody knows what was meant",
        )
    if config.get("pad_token_id", 1) != 1:
        raise refuse(folder, f"pad_token_id is {config['pad_token_id']} and MPNetModel takes 1 for it in any case")


def model_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the model ``maelm`` for a checked configuration.

    Only folders of `maelm export` have a decoder; elsewhere the prediction head stands on the encoder.
    """
    options: dict[str, Any] = {ours: int(config[theirs]) for ours, theirs in _SIZES.items()}
    options["decoder_layers"] = int(config.get("decoder_layers") or 0) if has_decoder_options(config) else 0
    options["max_positions"] = int(config["max_position_embeddings"]) - first_position(config)
    options["layer_norm_eps"] = _layer_norm_eps(config)
    options["relative_buckets"] = BUCKETS_OF[config["model_type"]] or str(config["relative_attention_buckets"])
    if config["model_type"] == "mpnet":
        options |= {"relative_num_buckets": MPNET_BUCKETS, "relative_max_distance": MPNET_MAX_DISTANCE}
    elif options["relative_buckets"] != "none":
        options["relative_num_buckets"] = int(config["relative_attention_num_buckets"])
        options["relative_max_distance"] = int(config["relative_attention_max_distance"])
    if options["decoder_layers"]:
        options |= {ours: int(config[theirs]) for ours, theirs in _DECODER_SIZES.items()}
        options["share_decoder_positions"] = bool(config["share_decoder_positions"])
    return options


def has_decoder_options(config: dict[str, Any]) -> bool:
    """Tell whether the folder is one of ours that predicts masks, and its configuration says how.

    Other folders of ours keep options of the decoder that was left out of them.
    """
    return config["model_type"] == "maelm" and "MaelmForMaskedLM" in (config.get("architectures") or [])


def task_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the task ``maelm`` with which the source's pretraining continues; an MLM sees <mask>."""
    if has_decoder_options(config):
        return {name: str(config[name]) for name in ("masked_input", "encoder_positions")}
    return {"masked_input": "kept", "leave_unmasked_prob": 0.1, "random_token_prob": 0.1}


def first_position(config: dict[str, Any]) -> int:
    """Return the row of the position table at which the first token stands: the one after that of padding."""
    return int(config.get("pad_token_id", 1)) + 1
