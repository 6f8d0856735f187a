"""The config.json of exported folders."""

from typing import Any

from fairseq_maelm.architecture.families import FAMILIES, MODERNBERT, MODERNBERT_SETTINGS
from fairseq_maelm.interop.export.target import ARCHITECTURES, AUTO_CLASSES, Target, labels_of
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint

# Folders are also opened by runtimes without transformers' defaults; tests/interop/export/test_elsewhere.py has a list.
# Settings that a family names differently, by their common names.
SETTING_NAMES = {
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
}


def configuration(source: LoadedCheckpoint, target: Target) -> dict[str, Any]:
    """Return the content of config.json. For an imported model, copy the source's and update what training changed."""
    config, dictionary = source.options, source.dictionary
    if target.kept is not None:
        settings = target.kept.config
        if target.class_name not in (settings.get("architectures") or []):
            settings["architectures"] = [target.class_name]
        if config.positions == "rotary":
            settings["max_position_embeddings"] = config.max_positions
        labels = target.labels
        unchanged = labels is None or labels.names == labels_of(settings, len(labels.names))
        return settings if unchanged else settings | _label_settings(target)
    settings = {
        "architectures": [target.class_name],
        "model_type": target.format,
        "vocab_size": len(dictionary),
        "hidden_size": config.encoder_embed_dim,
        "num_hidden_layers": config.encoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_embed_dim,
        "initializer_range": config.init_std,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "tie_word_embeddings": True,
    }
    if FAMILIES[target.format] is MODERNBERT:
        settings |= _modernbert_settings(source)
        if target.head is not None and getattr(source.model.classification_heads[target.head], "pooling", "") == "mean":
            settings["classifier_pooling"] = "mean"
    else:
        settings |= {
            "hidden_act": "gelu",
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            "max_position_embeddings": config.max_positions + FAMILIES[target.format].position_offset,
            "layer_norm_eps": config.layer_norm_eps,
            "relative_attention_num_buckets": config.relative_num_buckets,
        }
    other_names = SETTING_NAMES.get(target.format, {})
    settings = {other_names.get(name, name): value for name, value in settings.items()}
    if FAMILIES[target.format].token_types:
        settings |= {"type_vocab_size": FAMILIES[target.format].token_types, "position_embedding_type": "absolute"}
    if target.format == "electra":
        settings["embedding_size"] = config.encoder_embed_dim
    elif target.format == "maelm":
        settings |= _maelm_settings(source)
    return settings | _label_settings(target)


def _label_settings(target: Target) -> dict[str, Any]:
    return {} if target.labels is None else target.labels.to_config()


def _modernbert_settings(source: LoadedCheckpoint) -> dict[str, Any]:
    """Return ModernBERT's settings, with layer types and rotary bases under the names of transformers 4 and 5."""
    config, dictionary = source.options, source.dictionary
    # Two rotary bases need two kinds of layers, even where all layers attend to all tokens: the window then holds all.
    local = config.local_attention > 0 or config.local_rotary_base != config.rotary_base
    every = config.global_every if local else 1
    kinds = ["sliding_attention" if number % every else "full_attention" for number in range(config.encoder_layers)]
    bases = {"full_attention": config.rotary_base, "sliding_attention": config.local_rotary_base}
    return {
        **MODERNBERT_SETTINGS,
        "max_position_embeddings": config.max_positions,
        "norm_eps": config.layer_norm_eps,
        # Not read by transformers, or with this default, but required by other runtimes.
        "layer_norm_eps": config.layer_norm_eps,
        "initializer_cutoff_factor": 2.0,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "classifier_dropout": config.pooler_dropout,
        "local_attention": config.local_attention or 2 * config.max_positions,
        "layer_types": kinds,
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": float(base)} for name, base in bases.items()},
        "global_attn_every_n_layers": every,
        "global_rope_theta": float(config.rotary_base),
        "local_rope_theta": float(config.local_rotary_base),
        "reference_compile": False,
        "cls_token_id": dictionary.bos(),
        "sep_token_id": dictionary.eos(),
    }


def _maelm_settings(source: LoadedCheckpoint) -> dict[str, Any]:
    classes = {name: ending for name, ending in ARCHITECTURES.items() if name != "masked-lm"}
    return {
        # A folder holds the code of all classes and opens as any of them, with new weights for missing heads.
        "auto_map": {
            "AutoConfig": "configuration_maelm.MaelmConfig",
            **{AUTO_CLASSES[name]: f"modeling_maelm.Maelm{ending}" for name, ending in classes.items()},
        },
        "relative_attention_buckets": str(source.options.relative_buckets),
        "relative_attention_max_distance": source.options.relative_max_distance,
    }
