"""Model families that share our layers, one row each, read by export and by import: names of weights and settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.architecture.encoder_options import EncoderOptions

_POSITIONS = "embed_positions.weight"
# Our options -> their names in config.json, in the order in which an export writes them.
_SIZES = {
    "encoder_embed_dim": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_embed_dim": "intermediate_size",
}
_SETTINGS = {
    **_SIZES,
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "max_positions": "max_position_embeddings",
    "layer_norm_eps": "layer_norm_eps",
    "relative_num_buckets": "relative_attention_num_buckets",
}
_POST_NORM = {"layer": "post_norm", "positions": "absolute", "local_attention": 0}


@dataclass(frozen=True)
class Family:
    """The weights and settings of a model family. A weight's name without ".weight" or ".bias" stands for both."""

    prefix: str  # prefix of the encoder's names in models with a head
    encoder: dict[str, str]  # the encoder without its layers
    layers: str  # prefix of the names in the encoder's layer {}
    layer: dict[str, tuple[str, ...]]  # one layer; several names are stacked by rows in our matrix
    lm_head: dict[str, str]
    heads: dict[str, dict[str, str]] = field(default_factory=dict)  # the fine-tuned head of each architecture
    position_offset: int = 2  # row of the first position in the table: for RoBERTa, the padding index plus 1
    token_types: int = 0  # number of token types in the stock class
    has_pooler: bool = False  # the stock encoder has a pooler
    # Names of our options in config.json, and transformers' values where it has none of these.
    settings: dict[str, str] = field(default_factory=lambda: _SETTINGS)
    defaults: dict[str, Any] = field(default_factory=lambda: {"layer_norm_eps": 1e-12})
    # Our options that the stock class has no setting for, or ignores the setting.
    fixed: dict[str, Any] = field(default_factory=lambda: {**_POST_NORM, "relative_buckets": "none"})
    # Settings of what our layers compute.
    constants: dict[str, Any] = field(default_factory=lambda: {"hidden_act": "gelu"})

    @property
    def is_modern(self) -> bool:
        """True for the family of modern layers."""
        return bool(self.fixed.get("layer") == "modern")


_HUGGING_FACE_ENCODER = {
    "encoder.embed_tokens.weight": "embeddings.word_embeddings.weight",
    "encoder.embed_positions.weight": "embeddings.position_embeddings.weight",
    "encoder.layernorm_embedding": "embeddings.LayerNorm",
}
_FEED_FORWARD = {"fc1": ("intermediate.dense",), "fc2": ("output.dense",), "final_layer_norm": ("output.LayerNorm",)}
_LM_HEAD = {name: name for name in ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")}
_HEADS = {
    "sequence-classification": {"dense": "classifier.dense", "out_proj": "classifier.out_proj"},
    "token-classification": {"out_proj": "classifier"},
    "question-answering": {"out_proj": "qa_outputs"},
}
ROBERTA = Family(
    prefix="roberta.",
    encoder=_HUGGING_FACE_ENCODER,
    layers="encoder.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        "self_attn.out_proj": ("attention.output.dense",),
        "self_attn_layer_norm": ("attention.output.LayerNorm",),
        **_FEED_FORWARD,
    },
    lm_head=_LM_HEAD,
    heads=_HEADS,
    token_types=1,
    has_pooler=True,
)
# Heads that score tokens; a sequence's scores are computed in another way by each of these families.
_TOKEN_HEADS = {name: names for name, names in _HEADS.items() if name != "sequence-classification"}
BERT = replace(
    ROBERTA,
    prefix="bert.",
    lm_head={
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
        "lm_head.bias": "cls.predictions.bias",
    },
    heads={**_TOKEN_HEADS, "sequence-classification": {"dense": "bert.pooler.dense", "out_proj": "classifier"}},
    position_offset=0,
    token_types=2,
)
ELECTRA = replace(
    BERT,
    prefix="electra.",
    lm_head={
        "lm_head.dense": "generator_predictions.dense",
        "lm_head.layer_norm": "generator_predictions.LayerNorm",
        "lm_head.bias": "generator_lm_head.bias",
    },
    heads=_TOKEN_HEADS,
    has_pooler=False,
)
DISTILBERT = Family(
    prefix="distilbert.",
    encoder=_HUGGING_FACE_ENCODER,
    layers="transformer.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.{name}_lin" for name in "qkv"),
        "self_attn.out_proj": ("attention.out_lin",),
        "self_attn_layer_norm": ("sa_layer_norm",),
        "fc1": ("ffn.lin1",),
        "fc2": ("ffn.lin2",),
        "final_layer_norm": ("output_layer_norm",),
    },
    lm_head={
        "lm_head.dense": "vocab_transform",
        "lm_head.layer_norm": "vocab_layer_norm",
        "lm_head.bias": "vocab_projector.bias",
    },
    heads=_TOKEN_HEADS,
    position_offset=0,
    settings={
        "encoder_embed_dim": "dim",
        "encoder_layers": "n_layers",
        "encoder_attention_heads": "n_heads",
        "encoder_ffn_embed_dim": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        **{name: _SETTINGS[name] for name in ("max_positions", "layer_norm_eps", "relative_num_buckets")},
    },
    fixed={**ROBERTA.fixed, "layer_norm_eps": 1e-12},
    constants={"activation": "gelu"},
)
MPNET = Family(
    prefix="mpnet.",
    encoder={
        **_HUGGING_FACE_ENCODER,
        "encoder.relative_attention_bias.weight": "encoder.relative_attention_bias.weight",
    },
    layers="encoder.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.attn.{name}" for name in "qkv"),
        "self_attn.out_proj": ("attention.attn.o",),
        "self_attn_layer_norm": ("attention.LayerNorm",),
        **_FEED_FORWARD,
    },
    has_pooler=True,
    lm_head=_LM_HEAD,
    heads=_HEADS,
    # transformers hard-codes the buckets (MPNetEncoder.compute_position_bias) and ignores the configuration.
    fixed={**_POST_NORM, "relative_buckets": "t5", "relative_num_buckets": 32, "relative_max_distance": 128},
)
# Our own classes for transformers use MPNet's names.
MAELM = replace(
    MPNET,
    settings={
        **_SETTINGS,
        "relative_buckets": "relative_attention_buckets",
        "relative_max_distance": "relative_attention_max_distance",
    },
    fixed=_POST_NORM,
)
_MODERN_HEAD = {
    "transform.dense.weight": "head.dense.weight",
    "transform.layer_norm.weight": "head.norm.weight",
    "out_proj": "classifier",
}
MODERNBERT = Family(
    prefix="model.",
    encoder={
        "encoder.embed_tokens.weight": "embeddings.tok_embeddings.weight",
        "encoder.layernorm_embedding.weight": "embeddings.norm.weight",
        "encoder.final_layer_norm.weight": "final_norm.weight",
    },
    layers="layers.{}.",
    layer={
        "self_attn.qkv_proj.weight": ("attn.Wqkv.weight",),
        "self_attn.out_proj.weight": ("attn.Wo.weight",),
        "self_attn_layer_norm.weight": ("attn_norm.weight",),
        "final_layer_norm.weight": ("mlp_norm.weight",),
        "fc1.weight": ("mlp.Wi.weight",),
        "fc2.weight": ("mlp.Wo.weight",),
    },
    lm_head={
        "lm_head.dense.weight": "head.dense.weight",
        "lm_head.layer_norm.weight": "head.norm.weight",
        "lm_head.bias": "decoder.bias",
    },
    heads={
        "sequence-classification": {name.removeprefix("transform."): theirs for name, theirs in _MODERN_HEAD.items()},
        "token-classification": _MODERN_HEAD,
        "question-answering": _MODERN_HEAD,
    },
    position_offset=0,
    settings={
        **_SIZES,
        "max_positions": "max_position_embeddings",
        "layer_norm_eps": "norm_eps",
        "eps": "layer_norm_eps",  # not read by transformers, but required by other runtimes
    },
    defaults={"layer_norm_eps": 1e-5},
    fixed={"layer": "modern", "positions": "rotary", "relative_buckets": "none"},
    constants={
        "hidden_activation": "gelu",
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "classifier_activation": "gelu",
    },
)
_SENTENCE_ENCODER = "encoder.sentence_encoder."
FAIRSEQ_ROBERTA = Family(
    prefix="",
    encoder={
        f"encoder.{name}": _SENTENCE_ENCODER + name
        for name in ("embed_tokens.weight", "embed_positions.weight", "layernorm_embedding")
    },
    layers=_SENTENCE_ENCODER + "layers.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"self_attn.{name}_proj" for name in "qkv"),
        **{name: (name,) for name in ("self_attn.out_proj", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")},
    },
    lm_head={name: f"encoder.{name}" for name in _LM_HEAD},
    fixed={**ROBERTA.fixed, "layer_norm_eps": 1e-5},
)
# model_type in config.json -> family
FAMILIES = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "mpnet": MPNET,
    "maelm": MAELM,
    "modernbert": MODERNBERT,
    "bert": BERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
}


def rotary_settings(options: EncoderOptions) -> dict[str, Any]:
    """Return ModernBERT's layer types and rotary bases, under the names of transformers 4 and 5."""
    base, local_base = options.rotary_bases
    # Two rotary bases need two kinds of layers, even where all layers attend to all tokens: the window then holds all.
    every = options.global_every if options.has_local_layers else 1
    layers = range(int(options.encoder_layers or 0))
    bases = {"full_attention": base, "sliding_attention": local_base}
    return {
        "local_attention": options.window or 2 * options.max_positions,
        "layer_types": ["sliding_attention" if number % every else "full_attention" for number in layers],
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": float(each)} for name, each in bases.items()},
        "global_attn_every_n_layers": every,
        "global_rope_theta": float(base),
        "local_rope_theta": float(local_base),
    }


def rotary_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a ModernBERT's layer types and rotary bases: the inverse of ``rotary_settings``."""
    layers, named = config["num_hidden_layers"], config.get("rope_parameters") or {}
    every = config.get("global_attn_every_n_layers") or 3
    kinds = config.get("layer_types") or ["sliding" if number % every else "full_attention" for number in range(layers)]
    whole = [number for number, kind in enumerate(kinds) if kind == "full_attention"]

    def base(kind: str, old_name: str, default: int) -> int:
        return int((named.get(kind) or {}).get("rope_theta") or config.get(old_name) or default)

    first = base("full_attention", "global_rope_theta", 160_000)
    if len(whole) == layers:
        return {"rotary_base": first, "local_rotary_base": first}
    options = {"rotary_base": first, "local_rotary_base": base("sliding_attention", "local_rope_theta", 10_000)}
    options["global_every"] = whole[1] if len(whole) > 1 else layers
    window = int(config.get("local_attention", 128) or 0)
    return options if window // 2 >= config["max_position_embeddings"] - 1 else options | {"local_attention": window}


def _names(
    family: Family, options: Mapping[str, Any], architecture: str, head: str | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield, for each weight of a model with these options, our name and the family's names."""
    table: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in family.encoder.items()}
    if architecture == "masked-lm":
        table |= {ours: (theirs,) for ours, theirs in family.lm_head.items()}
    elif architecture != "encoder" and head is not None:
        table |= {f"classification_heads.{head}.{ours}": (name,) for ours, name in family.heads[architecture].items()}
    for number in range(options["encoder_layers"]):
        for ours, names in family.layer.items():
            table[f"encoder.layers.{number}.{ours}"] = tuple(family.layers.format(number) + name for name in names)
    left_out = _left_out(options)
    for ours, theirs in table.items():
        if ours in left_out:
            continue
        if ours.endswith((".weight", ".bias")):
            yield ours, theirs
        else:
            yield from ((f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)) for kind in ("weight", "bias"))


def _left_out(options: Mapping[str, Any]) -> set[str]:
    """Return our names for the weights that a model with these options lacks."""
    # The first layer of ModernBERT has no LayerNorm in front, because the embeddings have one.
    left_out = {"encoder.layers.0.self_attn_layer_norm.weight"}
    if str(options["relative_buckets"]) == "none":
        left_out.add("encoder.relative_attention_bias.weight")
    return left_out


def weights_of_family(
    state: Mapping[str, Tensor], family: Family, options: Mapping[str, Any], architecture: str, head: str | None
) -> dict[str, Tensor]:
    """Return our weights under a family's names, as <float32> copies because safetensors refuses shared memory.

    The architecture is "encoder", "masked-lm", or that of the fine-tuned ``head``; ``options`` are those of our model.
    """
    prefix = "" if architecture == "encoder" else family.prefix
    named = {}
    for ours, theirs in _names(family, options, architecture, head):
        tensor = state[ours].detach().float()
        if ours.endswith(_POSITIONS):
            tensor = F.pad(tensor, (0, 0, family.position_offset, 0))
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            full_name = prefix + name if ours.startswith("encoder.") else name
            named[full_name] = part.clone(memory_format=torch.contiguous_format)
    return named


def take_weights(
    theirs: dict[str, Tensor],
    family: Family,
    options: Mapping[str, Any],
    architecture: str,
    head: str | None = None,
    first_position: int | None = None,
) -> dict[str, Tensor]:
    """Return a family's weights under our names; for the other arguments see ``weights_of_family``.

    The names in ``theirs`` lack the prefix of models with a head; converted weights are removed from ``theirs``.
    ``first_position`` is the first token's row in the position table, by default ``family.position_offset``. A missing
    weight raises a KeyError.
    """
    first_row = family.position_offset if first_position is None else first_position
    state = {}
    for ours, names in _names(family, options, architecture, head):
        tensor = torch.cat([theirs.pop(name.removeprefix(family.prefix)) for name in names])
        state[ours] = tensor[first_row:] if ours.endswith(_POSITIONS) else tensor
    return state
