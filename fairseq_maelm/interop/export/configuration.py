"""config.json of exported folders."""

from typing import Any

from fairseq_maelm.interop.export.content import ARCHITECTURES, AUTO_CLASSES, Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.weights import POSITION_OFFSET


def configuration(source: Source, content: Content) -> dict[str, Any]:
    """Return config.json of a folder that ``obstacles`` finds nothing against."""
    config, dictionary = source.options, source.dictionary
    settings: dict[str, Any] = {
        "architectures": [content.class_name],
        "model_type": content.format,
        "vocab_size": len(dictionary),
        "hidden_size": config.encoder_embed_dim,
        "num_hidden_layers": config.encoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_embed_dim,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions + POSITION_OFFSET,
        "initializer_range": config.init_std,
        "layer_norm_eps": source.model.encoder.layernorm_embedding.eps,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "tie_word_embeddings": True,
    }
    if content.format == "roberta":
        settings["type_vocab_size"] = 1
    else:
        settings["relative_attention_num_buckets"] = config.relative_num_buckets
    if content.format == "maelm":
        settings.update(_maelm_settings(source, content))
    if content.labels is not None:
        settings["id2label"] = {str(number): label for number, label in enumerate(content.labels)}
        settings["label2id"] = {label: number for number, label in enumerate(content.labels)}
        if content.architecture == "sequence-classification" and len(content.labels) == 1:
            settings["problem_type"] = "regression"
    return settings


def _maelm_settings(source: Source, content: Content) -> dict[str, Any]:
    config, view = source.options, source.checkpoint.view
    settings: dict[str, Any] = {
        # Every folder holds the code of all classes and opens as any of them; a head that it lacks is fresh.
        "auto_map": {
            "AutoConfig": "configuration_maelm.MaelmConfig",
            **{name: f"modeling_maelm.Maelm{ARCHITECTURES[each]}" for each, name in AUTO_CLASSES.items()},
        },
        # Without a decoder of its own, a fresh head predicts masks as an MLM's.
        "mask_token_id": source.model.mask_index,
        "masked_input": "kept",
        "relative_attention_buckets": str(config.relative_buckets),
        "relative_attention_max_distance": config.relative_max_distance,
    }
    if content.architecture == "masked-lm":
        asked = "reset" if view.masked_input == "reset" else "kept"
        settings |= {
            "masked_input": asked if view.asks_with_masks else "dropped",
            "encoder_positions": view.positions,
            "decoder_layers": config.decoder_layers,
            "decoder_hidden_size": config.decoder_embed_dim,
            "decoder_intermediate_size": config.decoder_ffn_embed_dim,
            "decoder_attention_heads": config.decoder_attention_heads,
            "share_decoder_positions": bool(config.share_decoder_positions),
        }
    return settings
