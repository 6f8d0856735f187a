"""The model's options and their defaults."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, OmegaConf, open_dict

from fairseq_maelm.architecture.encoder_options import POSITIONS, fill_from_size
from fairseq_maelm.architecture.families import FAMILIES
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.autocast import LAYER_NORM_EPS
from fairseq_maelm.modules.transformer import DECODER_ATTENTION, LAYERS
from fairseq_maelm.options import PRECISIONS, option

_OF_SIZE = "default: the architecture's"
_OF_ENCODER = "default: the encoder's"
# Limits of LayerNorm's epsilon, and of rotary bases.
SMALLEST_EPS, LARGEST_EPS = 1e-14, 1e-2
_BASES = {"minimum": 2, "maximum": 2**31 - 1}

# The options that determine the encoder. Its weights can be loaded only with the same values.
ENCODER_OPTIONS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "layer",
    "positions",
    "rotary_base",
    "local_rotary_base",
    "local_attention",
    "global_every",
    "relative_buckets",
    "relative_num_buckets",
    "relative_max_distance",
    "max_positions",
    "layer_norm_eps",
    "imported_as",
)


@dataclass
class MaelmModelConfig(FairseqDataclass):
    """Options of the model. Options that are None are filled in from the architecture."""

    encoder_layers: Optional[int] = option(None, help=f"encoder layers ({_OF_SIZE})", minimum=1)
    encoder_embed_dim: Optional[int] = option(None, help=f"model width ({_OF_SIZE})", minimum=1)
    encoder_ffn_embed_dim: Optional[int] = option(None, help=f"feed-forward width ({_OF_SIZE})", minimum=1)
    encoder_attention_heads: Optional[int] = option(None, help=f"attention heads ({_OF_SIZE})", minimum=1)
    decoder_layers: Optional[int] = option(
        None,
        help="decoder layers; with 0 the LM head reads the encoder's states, as in RoBERTa "
        f"({_OF_SIZE}; with --decoder-attention shared, half of the encoder's, or all of them for a "
        "checkpoint that had no decoder)",
        minimum=0,
    )
    decoder_attention: Optional[ChoiceEnum(list(DECODER_ATTENTION))] = option(  # type: ignore[valid-type]
        None,
        help="what the decoder attends to. 'self': its own states (the paper's MAE-LM). 'cross': the encoder's output; "
        "only predicted positions are computed. 'shared': layers of the encoder, evenly spread up to its last, also "
        "decode; masks attend to all tokens in them, but visible tokens do not attend to masks. 'self_cross': its own "
        "states and the encoder's output. 'causal_cross': earlier tokens and the encoder's output, to predict every "
        f"token as in BART ({_OF_SIZE})",
    )
    decoder_embed_dim: Optional[int] = option(None, help=f"decoder width ({_OF_ENCODER})", minimum=1)
    decoder_ffn_embed_dim: Optional[int] = option(
        None, help=f"feed-forward width in the decoder ({_OF_ENCODER})", minimum=1
    )
    decoder_attention_heads: Optional[int] = option(
        None, help=f"attention heads in the decoder ({_OF_ENCODER})", minimum=1
    )
    layer: Optional[ChoiceEnum(list(LAYERS))] = option(  # type: ignore[valid-type]
        None,
        help="type of layer in the encoder and the decoder: the paper's, with LayerNorm after each residual sum, or "
        f"ModernBERT's, with LayerNorm before each sub-layer, a gated feed-forward network and no biases ({_OF_SIZE})",
    )
    positions: Optional[ChoiceEnum(list(POSITIONS))] = option(  # type: ignore[valid-type]
        None,
        help="positions in the encoder: a table of embeddings and --relative-buckets, or rotary positions "
        f"instead of both ({_OF_SIZE})",
    )
    decoder_positions: Optional[ChoiceEnum(list(POSITIONS))] = option(  # type: ignore[valid-type]
        None,
        help="positions in the decoder, which has no relative bias: a table of embeddings, or rotary positions "
        f"({_OF_ENCODER})",
    )
    rotary_base: Optional[int] = option(
        None,
        help=f"base of the rotary positions; their longest wavelength is 2 pi times the base ({_OF_SIZE})",
        **_BASES,
    )
    local_rotary_base: Optional[int] = option(
        None, help="rotary base of all encoder layers that are not global (default: --rotary-base)", **_BASES
    )
    local_attention: int = option(
        0,
        help="attention window, in tokens, of the encoder layers that are not global: a token attends to tokens at "
        "most half a window away in the original sequence; with 0, all layers attend to all tokens",
        minimum=0,
    )
    global_every: int = option(
        3, help="period of global encoder layers; the first layer of each period is global", minimum=1
    )
    dropout: Optional[float] = option(
        None, help=f"dropout in the encoder; the decoder has none ({_OF_SIZE})", minimum=0, below=1
    )
    attention_dropout: Optional[float] = option(
        None, help=f"dropout of attention weights in the encoder ({_OF_SIZE})", minimum=0, below=1
    )
    pooler_dropout: float = option(0.0, help="dropout in classification heads", minimum=0, below=1)
    attention: ChoiceEnum(list(BACKENDS)) = option(  # type: ignore[valid-type]
        "auto",
        help="implementation of attention: "
        + ", ".join(f"{backend.about} ({name!r})" for name, backend in BACKENDS.items())
        + ". Results differ only by rounding and, with dropout, by the random numbers",
    )
    relative_buckets: Optional[ChoiceEnum(["t5", "reference", "none"])] = option(  # type: ignore[valid-type]
        None,
        help="relative bias: T5's buckets, those of the authors' code, or none (default: t5, but none with "
        "rotary positions)",
    )
    relative_num_buckets: Optional[int] = option(None, help=f"number of relative buckets ({_OF_SIZE})")
    relative_max_distance: Optional[int] = option(
        None, help=f"distance beyond which all distances share one relative bucket ({_OF_SIZE})"
    )
    share_decoder_positions: bool = option(False, help="use the encoder's table of position embeddings in the decoder")
    max_positions: int = option(512, help="length of the longest sequence, <s> and </s> included")
    layer_norm_eps: float = option(
        LAYER_NORM_EPS,
        help="epsilon that LayerNorm adds to the variance; imported models may have another value",
        minimum=SMALLEST_EPS,
        maximum=LARGEST_EPS,
    )
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
    # Declared only to be refused; see fairseq_maelm.architecture.checks.
    bf16: bool = II("common.bf16")


# The options that determine the decoder.
DECODER_OPTIONS = tuple(name for name in MaelmModelConfig.__dataclass_fields__ if "decoder" in name)


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
