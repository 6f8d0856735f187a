"""config.json of exported folders, and what a format cannot hold."""

from dataclasses import dataclass
from typing import Any, Optional

from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.interop.export.weights import POSITION_OFFSET
from fairseq_maelm.modules.heads import ClassificationHead

FORMATS = ("mpnet", "maelm")
# What is exported, and the ending of the class that holds it.
ARCHITECTURES = {
    "encoder": "Model",
    "masked-lm": "ForMaskedLM",
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
}
AUTO_CLASSES = {name: f"AutoModel{ending.removeprefix('Model')}" for name, ending in ARCHITECTURES.items()}

# MPNetEncoder.compute_position_bias has these numbers of its own and does not ask its configuration.
_MPNET_BUCKETS = ("t5", 32, 128)


@dataclass(frozen=True)
class Content:
    """What a folder is to hold.

    Attributes:
        form: one of ``FORMATS``.
        architecture: one of ``ARCHITECTURES``.
        head: name of the fine-tuned head, None for the encoder and for the prediction of masks.
        labels: names of the head's outputs, or None.
    """

    form: str
    architecture: str
    head: Optional[str] = None
    labels: Optional[tuple[str, ...]] = None

    @property
    def class_name(self) -> str:
        """The class that opens the folder."""
        return {"mpnet": "MPNet", "maelm": "Maelm"}[self.form] + ARCHITECTURES[self.architecture]

    @property
    def what(self) -> str:
        """What it computes, for people."""
        return "hidden states" if self.architecture == "encoder" else f"{self.architecture} scores"

    @property
    def auto_class(self) -> str:
        """The class of transformers that finds it."""
        return AUTO_CLASSES[self.architecture]


def obstacles(source: Source, content: Content) -> list[str]:
    """Why a format cannot hold this; empty if it can."""
    found = _mpnet_obstacles(source, content) if content.form == "mpnet" else []
    decoder = source.model.decoder
    if content.architecture == "masked-lm":
        if source.model.lm_head is None:
            found.append("the checkpoint has no prediction head: it was fine-tuned")
        if decoder is not None and decoder.reads_encoder:
            found.append(f"its decoder has cross-attention (--decoder-attention {decoder.attention})")
    head = source.model.classification_heads[content.head] if content.head is not None else None
    if isinstance(head, ClassificationHead) and head.dense.out_features != head.dense.in_features:
        found.append(f"the head {content.head!r} has a dense layer of another width than the model's")
    return found


def _mpnet_obstacles(source: Source, content: Content) -> list[str]:
    found = []
    config = source.config["model"]
    if str(config.relative_buckets) == "none":
        found.append("it has no relative position bias, which every MPNet has")
    else:
        buckets = (str(config.relative_buckets), config.relative_num_buckets, config.relative_max_distance)
        if buckets != _MPNET_BUCKETS:
            found.append(
                f"its relative positions are {buckets[0]} buckets {buckets[1]}/{buckets[2]}, and transformers' MPNet "
                "always computes T5's 32/128, whatever its configuration says: the folder would load and be wrong"
            )
    if content.architecture == "masked-lm":
        if source.model.decoder is not None:
            found.append("it predicts masked tokens by its decoder, which MPNet does not have")
        elif not source.view.asks_with_masks or source.view.masked_input == "reset":
            found.append(f"its encoder does not predict from <mask> (--masked-input {source.view.masked_input})")
    return found


def configuration(source: Source, content: Content) -> dict[str, Any]:
    """config.json of a folder that ``obstacles`` finds nothing against."""
    config, dictionary = source.config["model"], source.dictionary
    settings: dict[str, Any] = {
        "architectures": [content.class_name],
        "model_type": content.form,
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
        "relative_attention_num_buckets": config.relative_num_buckets,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "tie_word_embeddings": True,
    }
    if content.form == "maelm":
        settings.update(_maelm_settings(source, content))
    if content.labels is not None:
        settings["id2label"] = {str(number): label for number, label in enumerate(content.labels)}
        settings["label2id"] = {label: number for number, label in enumerate(content.labels)}
        if content.architecture == "sequence-classification" and len(content.labels) == 1:
            settings["problem_type"] = "regression"
    return settings


def _maelm_settings(source: Source, content: Content) -> dict[str, Any]:
    config = source.config["model"]
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
        asked = "reset" if source.view.masked_input == "reset" else "kept"
        settings |= {
            "masked_input": asked if source.view.asks_with_masks else "dropped",
            "encoder_positions": source.view.positions,
            "decoder_layers": config.decoder_layers,
            "decoder_hidden_size": config.decoder_embed_dim,
            "decoder_intermediate_size": config.decoder_ffn_embed_dim,
            "decoder_attention_heads": config.decoder_attention_heads,
            "share_decoder_positions": bool(config.share_decoder_positions),
        }
    return settings
