"""The config.json of a Hugging Face folder: written by an export, and converted to our options by an import.

Whether our encoder computes what a configuration describes is shown by the comparison of outputs at the end of every
import. Refused here is only what this comparison cannot see, and what would take too much memory.
"""

from pathlib import Path
from typing import Any

from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS, EncoderOptions
from fairseq_maelm.architecture.families import FAMILIES, rotary_options, rotary_settings
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.interop.export.formats import OUR_FORMAT
from fairseq_maelm.interop.export.target import ARCHITECTURES, AUTO_CLASSES, Target, labels_of
from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint
from fairseq_maelm.interop.source_files import CONFIG_FILE

# Settings that no output shows, or with which sequences longer than the compared ones are computed differently.
_UNSEEN = {
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "rope_scaling": None,
    "position_embedding_type": "absolute",  # which version 5 of transformers ignores
}
_DEEPEST, _MOST_LABELS, _LARGEST = 1000, 100_000, 10_000_000
# transformers writes 10^30 where no length is known.
_NO_SIZES = ("model_max_length", "max_len", "max_length")
_ADAPTER = "adapter_config.json"


def configuration(source: LoadedCheckpoint, target: Target) -> dict[str, Any]:
    """Return the content of config.json. For an imported model, copy the source's and update what training changed.

    Folders are also opened by runtimes without transformers' defaults; tests/interop/export/test_elsewhere.py has a
    list.
    """
    config, dictionary, family = source.options, source.dictionary, FAMILIES[target.format]
    if target.kept is not None:
        settings = target.kept.config
        if target.class_name not in (settings.get("architectures") or []):
            settings["architectures"] = [target.class_name]
        if config.positions == "rotary":
            settings["max_position_embeddings"] = config.max_positions
        labels = target.labels
        unchanged = labels is None or labels.names == labels_of(settings, len(labels.names))
        return settings if unchanged else settings | _label_settings(target)
    encoder = EncoderOptions.of(config)
    values = {name: getattr(encoder if hasattr(encoder, name) else config, name) for name in family.settings}
    values["max_positions"] += family.position_offset
    translated = {theirs: values[ours] for ours, theirs in family.settings.items()}
    settings = {
        "architectures": [target.class_name],
        "model_type": target.format,
        "vocab_size": len(dictionary),
        **{theirs: translated.pop(theirs) for ours, theirs in family.settings.items() if ours.startswith("encoder_")},
        "initializer_range": config.init_std,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "tie_word_embeddings": True,
        **family.constants,
    }
    if target.format == OUR_FORMAT:
        settings |= _maelm_settings(translated)
    elif family.is_modern:
        settings |= translated | _modernbert_settings(source, encoder)
        if target.head is not None and getattr(source.model.classification_heads[target.head], "pooling", "") == "mean":
            settings["classifier_pooling"] = "mean"
    else:
        settings |= translated
    if family.token_types:
        settings |= {"type_vocab_size": family.token_types, "position_embedding_type": "absolute"}
    if target.format == "electra":
        settings["embedding_size"] = config.encoder_embed_dim
    return settings | _label_settings(target)


def _label_settings(target: Target) -> dict[str, Any]:
    return {} if target.labels is None else target.labels.to_config()


def _modernbert_settings(source: LoadedCheckpoint, encoder: EncoderOptions) -> dict[str, Any]:
    config = source.options
    return {
        "initializer_cutoff_factor": 2.0,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "classifier_dropout": config.pooler_dropout,
        **rotary_settings(encoder),
        "reference_compile": False,
        "cls_token_id": source.dictionary.bos(),
        "sep_token_id": source.dictionary.eos(),
    }


def _maelm_settings(translated: dict[str, Any]) -> dict[str, Any]:
    classes = {name: ending for name, ending in ARCHITECTURES.items() if name != "masked-lm"}
    own = {name: translated.pop(name) for name in ("relative_attention_buckets", "relative_attention_max_distance")}
    return {
        **translated,
        # A folder holds the code of all classes and opens as any of them, with new weights for missing heads.
        "auto_map": {
            "AutoConfig": "configuration_maelm.MaelmConfig",
            **{AUTO_CLASSES[name]: f"modeling_maelm.Maelm{ending}" for name, ending in classes.items()},
        },
        **own,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``, and refuse what the comparison of outputs would not show or not survive."""
    if (folder / _ADAPTER).is_file():  # with which transformers would also change a model in this folder
        base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
        raise refuse(
            folder,
            f"it holds an adapter ({_ADAPTER}) of the model {base}: merge it into that model, "
            "model.merge_and_unload() in peft, and save the result",
        )
    if not (folder / CONFIG_FILE).is_file():
        files = sorted(file.name for file in folder.glob("*.pt"))
        wanted = f"one of its checkpoints, {', '.join(files[:5])}" if files else "a folder that save_pretrained wrote"
        raise FileNotFoundError(f"there is no {CONFIG_FILE} in {folder}: give {wanted}")
    config = read_json(folder / CONFIG_FILE)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise refuse(folder, f"model_type {kind!r} is not one of {', '.join(FAMILIES)}")
    if config.get("auto_map") and kind != OUR_FORMAT:
        raise refuse(folder, f"{CONFIG_FILE} names code in the folder (auto_map), and such code is never run")
    check_numbers(folder, config, CONFIG_FILE)
    # ModernBERT's class has no such setting, but mmBERT's configuration names one.
    unread = {"position_embedding_type"} if FAMILIES[kind].fixed.get("positions") == "rotary" else set()
    for name, ours in _UNSEEN.items():
        if name not in unread and config.get(name, ours) != ours:
            raise refuse(folder, f"{name} is {config[name]!r}, but our encoder has {ours!r}")
    try:
        _check_values(config)
    except (TypeError, ValueError, AttributeError) as error:
        raise refuse(folder, f"{CONFIG_FILE} does not describe such a model: {error}") from error
    return config


def _check_values(config: dict[str, Any]) -> None:
    """Raise an error for values that are no sizes, or act on longer sequences than the compared ones only."""
    names = FAMILIES[config["model_type"]].settings
    for name in [theirs for ours, theirs in names.items() if ours.startswith(("encoder_", "max_positions"))]:
        if type(config.get(name)) is not int or config[name] < 1:
            raise ValueError(f"{name} is {config.get(name)!r}, not a whole number of 1 or more")
    # The shortest sequence that is compared has two tokens.
    if model_options(config)["max_positions"] < 2:
        raise ValueError(f"{names['max_positions']} is {config[names['max_positions']]}, too few for a text")
    named = config.get("rope_parameters") or {}
    if any(each.get("rope_type", "default") != "default" for each in named.values()):
        raise ValueError("its rotary positions are scaled")


def check_numbers(folder: Path, settings: dict[str, Any], file: str) -> None:
    """Refuse implausibly large sizes, for which a library could run out of memory or time."""
    for name, value in settings.items():
        largest = _DEEPEST if name.endswith("layers") else _MOST_LABELS if name == "num_labels" else _LARGEST
        if isinstance(value, int | float) and name not in _NO_SIZES and not value <= largest:
            raise refuse(folder, f"{name} in {file} is {str(value)[:20]!r}, not a number up to {largest}")


def model_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the model ``maelm`` for a configuration."""
    family = FAMILIES[config["model_type"]]
    read = {ours: config[theirs] for ours, theirs in family.settings.items() if config.get(theirs) is not None}
    options = family.defaults | {name: value for name, value in read.items() if name in ENCODER_OPTIONS} | family.fixed
    options |= {"decoder_layers": 0, "imported_as": config["model_type"]}
    options["max_positions"] -= position_offset(config)
    if family.is_modern:
        return options | rotary_options(config)
    if options.get("relative_buckets", "none") == "none":  # their number and distance mean nothing
        options = {name: value for name, value in options.items() if not name.startswith("relative_")}
        options["relative_buckets"] = "none"
    return options


def padding(config: dict[str, Any]) -> int | None:
    """Return the model's padding id, with transformers' default; None for a model without one."""
    family = FAMILIES[config["model_type"]]
    default = 50_283 if family.is_modern else 1 if family.position_offset else 0
    number: int | None = config.get("pad_token_id", default)
    return number


def position_offset(config: dict[str, Any]) -> int:
    """Return the first token's row in the position table: 0 or, as in RoBERTa, padding id + 1."""
    if not FAMILIES[config["model_type"]].position_offset:
        return 0
    number = padding(config)
    if number is None:
        raise ValueError("pad_token_id is null, but its positions are counted from that number")
    return number + 1
