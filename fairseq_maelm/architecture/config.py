"""The model's options and their defaults."""

import dataclasses
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, OmegaConf, open_dict

from fairseq_maelm.architecture.encoder_options import (
    DEFAULT_SIZE,
    OF_SIZE,
    POSITIONS,
    SIZES,
    EncoderOptions,
    shared_layers,
)
from fairseq_maelm.architecture.families import FAMILIES
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.transformer import DECODER_ATTENTION
from fairseq_maelm.options import PRECISIONS, option

_OF_ENCODER = "default: the encoder's"
# fairseq changes configurations, so that theirs cannot inherit from a frozen class.
_Fields: Any = dataclasses.make_dataclass(
    "_Fields",
    [(each.name, each.type, dataclasses.field(default=each.default, metadata=each.metadata))
     for each in dataclasses.fields(EncoderOptions)],
    bases=(FairseqDataclass,),
)  # fmt: skip


@dataclass
class MaelmModelConfig(_Fields):
    """Options of the model: those of the encoder, and others. Those that are None are filled in by the architecture."""

    decoder_layers: Optional[int] = option(
        None,
        help="decoder layers: the decoder's own or, with --decoder-attention shared, the number of encoder layers that "
        "also decode, spread evenly up to the last; with 0 the LM head reads the encoder's states, as in RoBERTa "
        f"({OF_SIZE}; with --decoder-attention shared, half of the encoder's, or all of them for a "
        "checkpoint that had no decoder)",
        minimum=0,
    )
    decoder_attention: Optional[ChoiceEnum(list(DECODER_ATTENTION))] = option(  # type: ignore[valid-type]
        None,
        help="what the decoder attends to. 'self': its own states (the paper's MAE-LM). 'cross': the encoder's output; "
        "only predicted positions are computed. 'shared': layers of the encoder, evenly spread up to its last, also "
        "decode; masks attend to all tokens in them, but visible tokens do not attend to masks. 'self_cross': its own "
        "states and the encoder's output. 'causal_cross': earlier tokens and the encoder's output, to predict every "
        f"token as in BART ({OF_SIZE})",
    )
    decoder_embed_dim: Optional[int] = option(None, help=f"decoder width ({_OF_ENCODER})", minimum=1)
    decoder_ffn_embed_dim: Optional[int] = option(
        None, help=f"feed-forward width in the decoder ({_OF_ENCODER})", minimum=1
    )
    decoder_attention_heads: Optional[int] = option(
        None, help=f"attention heads in the decoder ({_OF_ENCODER})", minimum=1
    )
    decoder_positions: Optional[ChoiceEnum(list(POSITIONS))] = option(  # type: ignore[valid-type]
        None,
        help="positions in the decoder, which has no relative bias: a table of embeddings, or rotary positions "
        f"({_OF_ENCODER})",
    )
    dropout: Optional[float] = option(
        None, help=f"dropout in the encoder; the decoder has none ({OF_SIZE})", minimum=0, below=1
    )
    attention_dropout: Optional[float] = option(
        None, help=f"dropout of attention weights in the encoder ({OF_SIZE})", minimum=0, below=1
    )
    pooler_dropout: float = option(0.0, help="dropout in classification heads", minimum=0, below=1)
    attention: ChoiceEnum(list(BACKENDS)) = option(  # type: ignore[valid-type]
        "auto",
        help="implementation of attention: "
        + ", ".join(f"{backend.about} ({name!r})" for name, backend in BACKENDS.items())
        + ". Results differ only by rounding and, with dropout, by the random numbers",
    )
    share_decoder_positions: bool = option(False, help="use the encoder's table of position embeddings in the decoder")
    imported_as: ChoiceEnum(["none", *FAMILIES]) = option(  # type: ignore[valid-type]
        "none",
        help="type of the published model that the encoder was imported from, set by `maelm import`; it is the "
        "default format of `maelm export`",
    )
    init_std: float = option(
        0.02,
        help="standard deviation for initializing linear layers; 0.02 suits widths of 768 and more, "
        "narrower models learn faster with about 0.55 / sqrt(width)",
        above=0,
    )
    embedding_init_std: float = option(
        0.02,
        help="standard deviation of the random embeddings of tokens and positions; with about 0.9 / sqrt(width), "
        "narrow models need far fewer updates to learn more than word frequencies",
        above=0,
    )
    precision: ChoiceEnum(list(PRECISIONS)) = option(  # type: ignore[valid-type]
        "fp32",
        help="precision of the computation; 'bf16' computes in bfloat16 and keeps weights, gradients, optimizer "
        "state and checkpoints in single precision. For fp16 use fairseq's --fp16",
    )
    compile: bool = option(False, help="compile the layers when training on a GPU")
    checkpoint_activations: bool = option(
        False, help="recompute each layer in the backward pass instead of storing its activations, which saves memory"
    )
    bf16: bool = II("common.bf16")  # declared only to be refused; see fairseq_maelm.architecture.checks


DECODER_OPTIONS = tuple(name for name in MaelmModelConfig.__dataclass_fields__ if "decoder" in name)


def fill_from_size(config: Any, name: str) -> None:
    """Fill in options that are None or missing, in place, with those of a named architecture, or of the default one.

    With 0 decoder layers, a missing decoder attention becomes "self": the others require a decoder. A missing number of
    decoder layers becomes ``shared_layers`` with decoder attention "shared", and a sixth of the encoder's if only the
    architecture's own decoder is shared.
    """
    size = dict(SIZES.get(name, SIZES[DEFAULT_SIZE]))
    if getattr(config, "decoder_layers", None) == 0:
        size["decoder_attention"] = "self"
    layers = getattr(config, "encoder_layers", None) or size["encoder_layers"]
    if (getattr(config, "decoder_attention", None) or size["decoder_attention"]) == "shared":
        size["decoder_layers"] = shared_layers(layers)
    elif size["decoder_attention"] == "shared":
        size["decoder_layers"] = math.ceil(layers / 6)
    for field, value in size.items():
        if getattr(config, field, None) is None:
            setattr(config, field, value)


def complete_config(cfg: Any) -> None:
    """Fill in options that are None or missing, in place, from the named architecture and the defaults.

    fairseq itself fills in an architecture only for ``--arch``: with fairseq-hydra-train, every model would silently
    get the default size. An older checkpoint's configuration lacks newer options, which get their defaults.
    """
    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or ""
    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        # OmegaConf 2.0, which fairseq 0.12.2 needs, returns None for missing options: hasattr finds all of them.
        present = cfg.keys() if OmegaConf.is_config(cfg) else vars(cfg)
        for field, description in MaelmModelConfig.__dataclass_fields__.items():
            elsewhere = "${" in str(description.default)  # an option of another section
            if not field.startswith("_") and not elsewhere and field not in present:
                setattr(cfg, field, description.default)
        fill_from_size(cfg, name)
        for field in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            if getattr(cfg, f"decoder_{field}") is None:
                setattr(cfg, f"decoder_{field}", getattr(cfg, f"encoder_{field}"))
        buckets = "none" if cfg.positions == "rotary" else "t5"
        last = {"decoder_positions": cfg.positions, "local_rotary_base": cfg.rotary_base, "relative_buckets": buckets}
        for field, value in last.items():
            if getattr(cfg, field) is None:
                setattr(cfg, field, value)
