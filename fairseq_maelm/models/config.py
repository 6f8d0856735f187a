"""Options of the model, and how they are completed."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, OmegaConf, open_dict

from fairseq_maelm.models.sizes import POSITIONS, fill_from_size
from fairseq_maelm.modules.attention.choice import ATTENTION_BACKENDS
from fairseq_maelm.modules.precision import LAYER_NORM_EPS, PRECISIONS
from fairseq_maelm.modules.transformer import DECODER_ATTENTION, LAYERS

_OF_SIZE = "default: the architecture's"
_OF_ENCODER = "default: the encoder's"

# What the encoder is made of: its weights fit no other.
ENCODER_OPTIONS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "layer",
    "positions",
    "rotary_base",
    "local_rotary_base",
    "relative_buckets",
    "relative_num_buckets",
    "relative_max_distance",
    "max_positions",
    "layer_norm_eps",
)


@dataclass
class MaelmModelConfig(FairseqDataclass):
    """Options of the model. What is left open takes the value of the named architecture."""

    encoder_layers: Optional[int] = field(default=None, metadata={"help": f"encoder layers ({_OF_SIZE})"})
    encoder_embed_dim: Optional[int] = field(default=None, metadata={"help": f"model width ({_OF_SIZE})"})
    encoder_ffn_embed_dim: Optional[int] = field(default=None, metadata={"help": f"feed-forward width ({_OF_SIZE})"})
    encoder_attention_heads: Optional[int] = field(default=None, metadata={"help": f"attention heads ({_OF_SIZE})"})
    decoder_layers: Optional[int] = field(
        default=None,
        metadata={"help": f"decoder layers; 0 puts the prediction head on the encoder, as RoBERTa ({_OF_SIZE})"},
    )
    decoder_attention: ChoiceEnum(list(DECODER_ATTENTION)) = field(  # type: ignore[valid-type]
        default="self",
        metadata={
            "help": "what the decoder attends to: its own input ('self', MAE-LM), the encoder's output as well "
            "('self_cross'), that alone ('cross'), or, as BART, the encoder's output and the tokens before each "
            "('causal_cross'; predicts every token of the sequence)"
        },
    )
    decoder_embed_dim: Optional[int] = field(default=None, metadata={"help": f"decoder width ({_OF_ENCODER})"})
    decoder_ffn_embed_dim: Optional[int] = field(
        default=None, metadata={"help": f"feed-forward width in the decoder ({_OF_ENCODER})"}
    )
    decoder_attention_heads: Optional[int] = field(
        default=None, metadata={"help": f"attention heads in the decoder ({_OF_ENCODER})"}
    )
    layer: Optional[ChoiceEnum(list(LAYERS))] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "layer of both stacks: the paper's, with LayerNorm behind each residual sum, or ModernBERT's, with "
            f"LayerNorm before each sub-layer, a gated feed-forward network and no biases ({_OF_SIZE})"
        },
    )
    positions: Optional[ChoiceEnum(list(POSITIONS))] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "positions of tokens in the encoder: a table of embeddings and --relative-buckets, or rotary "
            f"positions in place of both ({_OF_SIZE})"
        },
    )
    decoder_positions: Optional[ChoiceEnum(list(POSITIONS))] = field(  # type: ignore[valid-type]
        default=None, metadata={"help": f"the same in the decoder, which has no relative bias ({_OF_ENCODER})"}
    )
    rotary_base: Optional[int] = field(
        default=None,
        metadata={"help": f"rotary positions have wavelengths from 2 pi to 2 pi times this base ({_OF_SIZE})"},
    )
    local_rotary_base: Optional[int] = field(
        default=None,
        metadata={
            "help": "base of the encoder's layers but the first of every three, as imported ModernBERTs have it, whose "
            "local attention reads sequences within its window as global attention does (default: --rotary-base)"
        },
    )
    dropout: Optional[float] = field(
        default=None, metadata={"help": f"dropout in the encoder; the decoder has none ({_OF_SIZE})"}
    )
    attention_dropout: Optional[float] = field(
        default=None, metadata={"help": f"dropout of attention weights in the encoder ({_OF_SIZE})"}
    )
    pooler_dropout: float = field(default=0.0, metadata={"help": "dropout in classification heads"})
    attention: ChoiceEnum(list(ATTENTION_BACKENDS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "how attention is computed: as is best for the device ('auto'), written out ('plain'), by torch's "
            "own ('sdpa'), by this package's for CPUs ('cpu') or for CUDA ('triton'). All give the same"
        },
    )
    relative_buckets: Optional[ChoiceEnum(["t5", "reference", "none"])] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "relative bias: T5's buckets, those of the authors' code, or none (default: t5; none with rotary "
            "positions)"
        },
    )
    relative_num_buckets: Optional[int] = field(default=None, metadata={"help": f"relative buckets ({_OF_SIZE})"})
    relative_max_distance: Optional[int] = field(
        default=None, metadata={"help": f"distance from which all share a relative bucket ({_OF_SIZE})"}
    )
    share_decoder_positions: bool = field(
        default=False, metadata={"help": "the decoder uses the encoder's table of absolute positions"}
    )
    max_positions: int = field(default=512, metadata={"help": "longest sequence, <s> and </s> included"})
    layer_norm_eps: float = field(
        default=LAYER_NORM_EPS,
        metadata={"help": "what LayerNorm adds to the variance; models from elsewhere may have another number"},
    )
    init_std: float = field(
        default=0.02,
        metadata={
            "help": "standard deviation of the random weights of linear layers; 0.02 suits a width of 768 and more, "
            "narrower models learn faster with about 0.55 / sqrt(width)"
        },
    )
    embedding_init_std: float = field(
        default=0.02,
        metadata={
            "help": "standard deviation of the random embeddings of tokens and absolute positions; narrow models leave "
            "the plateau of word frequencies much sooner with about 0.9 / sqrt(width)"
        },
    )
    precision: ChoiceEnum(list(PRECISIONS)) = field(  # type: ignore[valid-type]
        default="fp32",
        metadata={
            "help": "of the computation; 'bf16' computes in bfloat16 and keeps weights, gradients, optimizer and "
            "checkpoints in single precision. For fp16 use fairseq's --fp16"
        },
    )
    compile: bool = field(default=False, metadata={"help": "compile the layers, while training on a GPU"})
    checkpoint_activations: bool = field(
        default=False,
        metadata={
            "help": "compute each layer again in the backward pass instead of keeping what it needs: less memory"
        },
    )
    # Only to refuse it: see fairseq_maelm.models.checks.
    bf16: bool = II("common.bf16")


def complete_config(cfg: Any) -> None:
    """Fill what was left open, in place, whichever way the configuration was made.

    fairseq consults architecture functions for ``--arch`` only, and some paths of fairseq-hydra-train reach
    ``build_model`` without one: an architecture's name would then build the default size without a word. The
    configuration in a checkpoint lacks the options that are younger than it; they take their defaults.
    """
    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or ""
    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        for option, description in MaelmModelConfig.__dataclass_fields__.items():
            elsewhere = "${" in str(description.default)  # an option of fairseq's own, whose place is not here
            if not option.startswith("_") and not elsewhere and not hasattr(cfg, option):
                setattr(cfg, option, description.default)
        fill_from_size(cfg, name)
        for option in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            if getattr(cfg, f"decoder_{option}") is None:
                setattr(cfg, f"decoder_{option}", getattr(cfg, f"encoder_{option}"))
        buckets = "none" if cfg.positions == "rotary" else "t5"
        last = {"decoder_positions": cfg.positions, "local_rotary_base": cfg.rotary_base, "relative_buckets": buckets}
        for option, value in last.items():
            if getattr(cfg, option) is None:
                setattr(cfg, option, value)
