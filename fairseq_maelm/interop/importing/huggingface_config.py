"""Reading the configuration of a Hugging Face folder and refusing what our encoder does not compute."""

from pathlib import Path
from typing import Any

from fairseq_maelm.files import read_json
from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.interop.weights import FAMILIES, MODERNBERT_SETTINGS
from fairseq_maelm.models.checks import LARGEST_EPS, SMALLEST_EPS

# What our encoder computes, whatever else transformers can.
_EXPECTED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_EXPECTED_OF_MODERNBERT = {**MODERNBERT_SETTINGS, "tie_word_embeddings": True}

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
    return read_json(path)


def check_config(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a configuration under which the model computes something else than our encoder.

    Raises:
        ValueError: says what differs.
    """
    kind = config.get("model_type")
    if kind == "roberta-prelayernorm":
        raise refuse(folder, "its LayerNorms are before the sub-layers, and RoBERTa's and ours behind them")
    if kind not in FAMILIES:
        raise refuse(folder, f"model_type {kind!r} is none of {', '.join(FAMILIES)}")
    eps = _layer_norm_eps(config)
    if not isinstance(eps, float) or not SMALLEST_EPS <= eps <= LARGEST_EPS:
        raise refuse(folder, f"layer_norm_eps is {eps!r} and no number from {SMALLEST_EPS} to {LARGEST_EPS}")
    for name, ours in (_EXPECTED_OF_MODERNBERT if kind == "modernbert" else _EXPECTED).items():
        if config.get(name, ours) != ours:
            raise refuse(folder, f"{name} is {config[name]!r} and ours is {ours!r}")
    if kind == "mpnet":
        _check_mpnet(folder, config)
    if kind == "modernbert":
        _check_modernbert(folder, config)


def _layer_norm_eps(config: dict[str, Any]) -> Any:
    # What is missing has transformers' default, which differs from ours.
    if config["model_type"] == "modernbert":
        return config.get("norm_eps", 1e-5)
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


def _check_modernbert(folder: Path, config: dict[str, Any]) -> None:
    kinds, bases = _layer_types(config), _rotary_bases(config)
    if any(not base.is_integer() for base in bases):
        raise refuse(folder, f"its rotary bases are {bases}, and ours are integers")
    named = (config.get("rope_parameters") or {}).values()
    if config.get("rope_scaling") or any(each.get("rope_type", "default") != "default" for each in named):
        raise refuse(folder, "its rotary positions are scaled")
    pattern = [bool(number % 3) for number in range(len(kinds))]
    if bases[0] != bases[1] and any(kinds) and kinds != pattern:
        raise refuse(
            folder,
            "its layers with local attention, which have a rotary base of their own, are not all but "
            "the first of every three",
        )


def _layer_types(config: dict[str, Any]) -> list[bool]:
    """Return for each of ModernBERT's layers whether its attention is local."""
    layers, every = int(config["num_hidden_layers"]), int(config.get("global_attn_every_n_layers") or 3)
    kinds = config.get("layer_types")
    return (
        [bool(number % every) for number in range(layers)] if kinds is None else [k != "full_attention" for k in kinds]
    )


def _rotary_bases(config: dict[str, Any]) -> tuple[float, float]:
    """Return the bases of ModernBERT's global and local layers, which transformers 4 and 5 name differently."""
    named = config.get("rope_parameters") or {}
    bases = []
    for kind, old_name, default in (
        ("full_attention", "global_rope_theta", 160_000.0),
        ("sliding_attention", "local_rope_theta", 10_000.0),
    ):
        bases.append(float((named.get(kind) or {}).get("rope_theta") or config.get(old_name) or default))
    return bases[0], bases[1]


def _modernbert_options(config: dict[str, Any]) -> dict[str, Any]:
    positions, kinds, bases = int(config["max_position_embeddings"]), _layer_types(config), _rotary_bases(config)
    if any(kinds):
        # As far as the window of local attention reaches, it is global.
        positions = min(positions, int(config.get("local_attention", 128)) // 2 + 1)
    return {
        "layer": "modern",
        "positions": "rotary",
        "rotary_base": int(bases[0]),
        "local_rotary_base": int(bases[1] if any(kinds) else bases[0]),
        "max_positions": positions,
        "relative_buckets": "none",
    }


def model_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the model ``maelm`` for a checked configuration.

    Only folders of `maelm export` have a decoder; elsewhere the prediction head stands on the encoder.
    """
    options: dict[str, Any] = {ours: int(config[theirs]) for ours, theirs in _SIZES.items()}
    options["decoder_layers"] = int(config.get("decoder_layers") or 0) if has_decoder_options(config) else 0
    options["layer_norm_eps"] = _layer_norm_eps(config)
    if config["model_type"] == "modernbert":
        return options | _modernbert_options(config)
    options["max_positions"] = int(config["max_position_embeddings"]) - first_position(config)
    if config["model_type"] == "mpnet":
        relative = {"relative_num_buckets": MPNET_BUCKETS, "relative_max_distance": MPNET_MAX_DISTANCE}
        options |= {"relative_buckets": "t5", **relative}
    elif str(config.get("relative_attention_buckets", "none")) == "none":
        options["relative_buckets"] = "none"
    else:
        options["relative_buckets"] = str(config["relative_attention_buckets"])
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
    return int(config.get("pad_token_id", 50_283 if config["model_type"] == "modernbert" else 1)) + 1
