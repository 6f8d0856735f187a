"""Check the configuration of a Hugging Face folder and convert it to our options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_maelm.architecture.config import LARGEST_EPS, SMALLEST_EPS
from fairseq_maelm.architecture.families import FAMILIES, MODERNBERT, MODERNBERT_SETTINGS, MPNET_BUCKETS
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.interop.export.configuration import SETTING_NAMES
from fairseq_maelm.interop.export.formats import OUR_FORMAT
from fairseq_maelm.interop.importing.source import refuse

# Settings that a configuration must have, because our encoder computes nothing else.
_EXPECTED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
# Models of this kind that our encoder cannot compute.
_OTHER_MODELS = {
    "roberta-prelayernorm": "its LayerNorms are before the sub-layers, but in RoBERTa and our encoder they are after "
    "them",
    "xlm-roberta-xl": "its LayerNorms are before the sub-layers, but in our encoder they are after them",
    **dict.fromkeys(
        ("deberta", "deberta-v2"),
        "its attention multiplies queries and keys with embeddings of relative positions, but our encoder's attention "
        "does not",
    ),
    "albert": "its layers share their weights, and its embeddings are projected",
    **dict.fromkeys(("longformer", "big_bird"), "its attention is sparse in another way than our encoder's"),
    **dict.fromkeys(("eurobert", "neobert"), "its layers have RMSNorm and SwiGLU, and its LM head a matrix of its own"),
}
_EXPECTED_OF_MODERNBERT = {**MODERNBERT_SETTINGS, "tie_word_embeddings": True}
_SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
}
# Options that are counts, and the largest ones that are accepted.
_WHOLE = {
    *_SIZES.values(),
    *("max_position_embeddings", "vocab_size", "type_vocab_size", "num_labels", "pad_token_id"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
    *("local_attention", "global_attn_every_n_layers"),
}
_DEEPEST, _MOST_LABELS, _LARGEST = 1000, 100_000, 10_000_000
_ADAPTER = "adapter_config.json"
# transformers writes 10^30 where no length is known.
_NO_SIZES = ("model_max_length", "max_len", "max_length")


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``, and refuse a configuration that our encoder cannot compute."""
    path = folder / "config.json"
    if (folder / _ADAPTER).is_file():  # with which transformers would also change a model in this folder
        base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
        raise refuse(
            folder,
            f"it holds an adapter ({_ADAPTER}) of the model {base}: merge it into that model, "
            "model.merge_and_unload() in peft, and save the result",
        )
    if not path.is_file():
        files = sorted(file.name for file in folder.glob("*.pt"))
        wanted = f"one of its checkpoints, {', '.join(files[:5])}" if files else "a folder that save_pretrained wrote"
        raise FileNotFoundError(f"there is no config.json in {folder}: give {wanted}")
    config = read_json(path)
    kind = str(config.get("model_type"))
    common_names = {theirs: common for common, theirs in SETTING_NAMES.get(kind, {}).items()}
    config = {common_names.get(name, name): value for name, value in config.items()}
    if kind in _OTHER_MODELS:
        raise refuse(folder, f"model_type is {kind!r}: {_OTHER_MODELS[kind]}")
    if kind not in FAMILIES:
        raise refuse(folder, f"model_type {kind!r} is not one of {', '.join(FAMILIES)}")
    if config.get("auto_map") and kind != OUR_FORMAT:
        raise refuse(folder, "config.json names code in the folder (auto_map), and such code is never run")
    _check_sizes(folder, config)
    if FAMILIES[kind].position_offset and padding(config) is None:
        raise refuse(folder, "pad_token_id is null, but its positions are counted from that number")
    eps = _layer_norm_eps(config)
    if not isinstance(eps, float) or not SMALLEST_EPS <= eps <= LARGEST_EPS:
        raise refuse(folder, f"layer_norm_eps is {eps!r}, not a number from {SMALLEST_EPS} to {LARGEST_EPS}")
    for name, ours in (_EXPECTED_OF_MODERNBERT if _is_modern(config) else _EXPECTED).items():
        # Which states a head reads, if there is one, is told by its weights' names.
        if name != "classifier_pooling" and config.get(name, ours) != ours:
            raise refuse(folder, f"{name} is {config[name]!r}, but our encoder has {ours!r}")
    _OF_FAMILY.get(kind, lambda folder, config: None)(folder, config)
    return config


def _check_sizes(folder: Path, config: dict[str, Any]) -> None:
    check_numbers(folder, config, "config.json")
    for name in (*_SIZES.values(), "max_position_embeddings"):
        if config.get(name) is None:
            raise refuse(folder, f"config.json has no {name}")
        if config[name] < 1:
            raise refuse(folder, f"{name} is {config[name]}, not 1 or more")
    # The shortest sequence that is compared has two tokens.
    if config["max_position_embeddings"] - position_offset(config) < 2:
        raise refuse(folder, f"max_position_embeddings is {config['max_position_embeddings']}, too few for a text")


def check_numbers(folder: Path, settings: dict[str, Any], file: str) -> None:
    """Refuse implausibly large sizes, for which a library could run out of memory or time."""
    for name, value in settings.items():
        largest = _DEEPEST if name.endswith("layers") else _MOST_LABELS if name == "num_labels" else _LARGEST
        is_size = name in _WHOLE or isinstance(value, int | float) and name not in _NO_SIZES
        if is_size and value is not None and not (isinstance(value, int | float) and value <= largest):
            raise refuse(folder, f"{name} in {file} is {str(value)[:20]!r}, not a number up to {largest}")
        if name in _WHOLE and not isinstance(value, int | None):
            raise refuse(folder, f"{name} in {file} is {value!r}, not a whole number")


def _layer_norm_eps(config: dict[str, Any]) -> Any:
    # The defaults are those of transformers.
    fixed = FAMILIES[config["model_type"]].eps
    if fixed is not None:
        return fixed
    if _is_modern(config):
        return config.get("norm_eps", 1e-5)
    return config.get("layer_norm_eps", 1e-12)


def _check_mpnet(folder: Path, config: dict[str, Any]) -> None:
    _, number, distance = MPNET_BUCKETS
    buckets = config.get("relative_attention_num_buckets", number)
    if buckets != number:
        raise refuse(
            folder,
            f"relative_attention_num_buckets is {buckets}, but MPNetModel always computes {number} buckets up to the "
            f"distance {distance}, so the intended buckets are unknown",
        )
    if config.get("pad_token_id", 1) != 1:
        raise refuse(folder, f"pad_token_id is {config['pad_token_id']}, but MPNetModel always uses 1")


def _check_modernbert(folder: Path, config: dict[str, Any]) -> None:
    kinds, named = config.get("layer_types") or [], config.get("rope_parameters") or {}
    if not isinstance(kinds, list):
        raise refuse(folder, f"layer_types is {kinds!r}, not a list")
    if not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
        raise refuse(folder, f"rope_parameters is {named!r}, not an object for each kind of layer")
    try:
        local, bases = _local_layers(config), _rotary_bases(config)
    except (TypeError, ValueError) as error:
        raise refuse(folder, f"its rotary bases are not numbers ({error})") from error
    if any(not base.is_integer() for base in bases):
        raise refuse(folder, f"its rotary bases are {bases}, but our encoder needs integers")
    if config.get("rope_scaling") or any(each.get("rope_type", "default") != "default" for each in named.values()):
        raise refuse(folder, "its rotary positions are scaled")
    if any(local) and local != [bool(number % _global_every(local)) for number in range(len(local))]:
        raise refuse(
            folder,
            "our encoder has local attention in all layers except the first of every n, but this model has another "
            "pattern",
        )


def _check_electra(folder: Path, config: dict[str, Any]) -> None:
    width = config.get("embedding_size", 128)
    if width != config["hidden_size"]:
        raise refuse(
            folder,
            f"its embeddings have width {width} and its layers {config['hidden_size']}, but our encoder has no "
            "projection between them",
        )


_OF_FAMILY: dict[Any, Callable[[Path, dict[str, Any]], None]] = {
    "mpnet": _check_mpnet,
    "modernbert": _check_modernbert,
    "electra": _check_electra,
}


def _local_layers(config: dict[str, Any]) -> list[bool]:
    """Return for each of ModernBERT's layers whether its attention is local."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return [kind != "full_attention" for kind in kinds]
    every = int(config.get("global_attn_every_n_layers") or 3)
    return [bool(number % every) for number in range(int(config["num_hidden_layers"]))]


def _global_every(local: list[bool]) -> int:
    """Return the distance between two successive layers with global attention."""
    return next((number for number, each in enumerate(local) if number and not each), len(local))


def _rotary_bases(config: dict[str, Any]) -> tuple[float, float]:
    """Return the bases of ModernBERT's global and local layers, which transformers 4 and 5 name differently."""
    named = config.get("rope_parameters") or {}

    def base(kind: str, old_name: str, default: float) -> float:
        return float((named.get(kind) or {}).get("rope_theta") or config.get(old_name) or default)

    return base("full_attention", "global_rope_theta", 160_000), base("sliding_attention", "local_rope_theta", 10_000)


def model_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the model ``maelm`` for a checked configuration."""
    options: dict[str, Any] = {ours: int(config[theirs]) for ours, theirs in _SIZES.items()}
    options |= {
        "decoder_layers": 0,
        "layer_norm_eps": _layer_norm_eps(config),
        "imported_as": str(config["model_type"]),
    }
    if _is_modern(config):
        positions, bases = int(config["max_position_embeddings"]), _rotary_bases(config)
        options |= {"layer": "modern", "positions": "rotary", "max_positions": positions, "relative_buckets": "none"}
        local = _local_layers(config)
        if not any(local):
            return options | {"rotary_base": int(bases[0]), "local_rotary_base": int(bases[0])}
        # transformers refuses null.
        window = int(config.get("local_attention", 128) or 0)
        options |= {
            "rotary_base": int(bases[0]),
            "local_rotary_base": int(bases[1]),
            "global_every": _global_every(local),
        }
        return options if window // 2 >= positions - 1 else options | {"local_attention": window}
    options["max_positions"] = int(config["max_position_embeddings"]) - position_offset(config)
    function, number, distance = MPNET_BUCKETS
    if config["model_type"] != "mpnet":
        function = str(config.get("relative_attention_buckets", "none"))
        number = int(config.get("relative_attention_num_buckets") or number)
        distance = int(config.get("relative_attention_max_distance") or distance)
    options["relative_buckets"] = function
    if function != "none":
        options |= {"relative_num_buckets": number, "relative_max_distance": distance}
    return options


def _is_modern(config: dict[str, Any]) -> bool:
    return FAMILIES[config["model_type"]] is MODERNBERT


def padding(config: dict[str, Any]) -> int | None:
    """Return the model's padding id, with transformers' default; None for a model without one."""
    default = 50_283 if _is_modern(config) else 1 if FAMILIES[config["model_type"]].position_offset else 0
    number: int | None = config.get("pad_token_id", default)
    return number


def position_offset(config: dict[str, Any]) -> int:
    """Return the first token's row in the position table: 0 or, as in RoBERTa, padding id + 1."""
    number = padding(config)
    return 0 if number is None or not FAMILIES[config["model_type"]].position_offset else number + 1
