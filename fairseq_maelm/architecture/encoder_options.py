"""The options that determine the encoder, their only list; and the architectures, one row of numbers each."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from fairseq_maelm.modules.autocast import LAYER_NORM_EPS
from fairseq_maelm.modules.transformer import LAYERS
from fairseq_maelm.options import option

# "absolute": a table of position embeddings and, in the encoder, a learned relative bias.
POSITIONS = ("absolute", "rotary")
OF_SIZE = "default: the architecture's"
_BASES: dict[str, Any] = {"minimum": 2, "maximum": 2**31 - 1}


def _is_rotary(options: Any) -> bool:
    return str(options.positions) == "rotary"


def _has_table(options: Any) -> bool:
    return not _is_rotary(options)


def _has_bias(options: Any) -> bool:
    return str(options.relative_buckets) != "none"


def _has_local_layers(options: Any) -> bool:
    return bool(options.local_attention) or options.local_rotary_base != options.rotary_base


def _encoder_option(
    default: Any,
    help: str,
    shown_by: tuple[str, int] | None = None,
    is_saved: bool = False,
    acts: Callable[[Any], bool] = lambda options: True,
    **limits: float,
) -> Any:
    """Declare an option of the encoder; a default of None is the architecture's.

    ``shown_by`` is the name of a weight, and the index of its dimension, whose size must equal the option. With
    ``is_saved``, weights depend on the option but do not show it, so that it is saved with them and compared. ``acts``
    says whether the option changes anything in an encoder with the other options.
    """
    declared = option(default, help=help, **limits)
    more = {"shown_by": shown_by, "is_saved": is_saved, "acts": acts}
    return dataclasses.field(default=default, metadata={**declared.metadata, **more})


@dataclass(frozen=True)
class EncoderOptions:
    """The options that determine the encoder. Its weights can be loaded only with the same values.

    ``MaelmModelConfig`` has the same fields, in which None stands for a default that depends on other options. What is
    saved with the weights is saved in the order of declaration.
    """

    encoder_layers: Optional[int] = _encoder_option(None, f"encoder layers ({OF_SIZE})", minimum=1)
    encoder_embed_dim: Optional[int] = _encoder_option(
        None, f"model width ({OF_SIZE})", shown_by=("encoder.embed_tokens.weight", 1), minimum=1
    )
    encoder_ffn_embed_dim: Optional[int] = _encoder_option(
        None, f"feed-forward width ({OF_SIZE})", shown_by=("encoder.layers.0.fc2.weight", 1), minimum=1
    )
    layer: Optional[ChoiceEnum(list(LAYERS))] = _encoder_option(  # type: ignore[valid-type]
        None,
        "type of layer in the encoder and the decoder: the paper's, with LayerNorm after each residual sum, or "
        f"ModernBERT's, with LayerNorm before each sub-layer, a gated feed-forward network and no biases ({OF_SIZE})",
    )
    positions: Optional[ChoiceEnum(list(POSITIONS))] = _encoder_option(  # type: ignore[valid-type]
        None,
        "positions in the encoder: a table of embeddings and --relative-buckets, or rotary positions "
        f"instead of both ({OF_SIZE})",
        is_saved=True,
    )
    encoder_attention_heads: Optional[int] = _encoder_option(
        None, f"attention heads ({OF_SIZE})", is_saved=True, minimum=1
    )
    layer_norm_eps: float = _encoder_option(
        LAYER_NORM_EPS,
        "epsilon that LayerNorm adds to the variance; imported models may have another value",
        is_saved=True,
        minimum=1e-14,
        maximum=1e-2,
    )
    relative_buckets: Optional[ChoiceEnum(["t5", "reference", "none"])] = _encoder_option(  # type: ignore[valid-type]
        None,
        "relative bias: T5's buckets, those of the authors' code, or none (default: t5, but none with "
        "rotary positions)",
        is_saved=True,
    )
    local_attention: int = _encoder_option(
        0,
        "attention window, in tokens, of the encoder layers that are not global: a token attends to tokens at "
        "most half a window away in the original sequence; with 0, all layers attend to all tokens",
        is_saved=True,
        minimum=0,
    )
    relative_num_buckets: Optional[int] = _encoder_option(
        None,
        f"number of relative buckets ({OF_SIZE})",
        shown_by=("encoder.relative_attention_bias.weight", 0),
        acts=_has_bias,
    )
    relative_max_distance: Optional[int] = _encoder_option(
        None,
        f"distance beyond which all distances share one relative bucket ({OF_SIZE})",
        is_saved=True,
        acts=_has_bias,
    )
    rotary_base: Optional[int] = _encoder_option(
        None,
        f"base of the rotary positions; their longest wavelength is 2 pi times the base ({OF_SIZE})",
        is_saved=True,
        acts=_is_rotary,
        **_BASES,
    )
    local_rotary_base: Optional[int] = _encoder_option(
        None,
        "rotary base of all encoder layers that are not global (default: --rotary-base)",
        is_saved=True,
        acts=_is_rotary,
        **_BASES,
    )
    global_every: int = _encoder_option(
        3,
        "period of global encoder layers; the first layer of each period is global",
        is_saved=True,
        acts=_has_local_layers,
        minimum=1,
    )
    max_positions: int = _encoder_option(
        512,
        "length of the longest sequence, <s> and </s> included",
        shown_by=("encoder.embed_positions.weight", 0),
        acts=_has_table,
    )

    @classmethod
    def of(cls, config: Any) -> "EncoderOptions":
        """Return the options, as plain values, of an object with them as attributes; it may lack some."""
        values = {field.name: getattr(config, field.name, field.default) for field in dataclasses.fields(cls)}
        texts: dict[str, Any] = {name: str(value) for name, value in values.items() if isinstance(value, str | Enum)}
        return cls(**{**values, **texts})

    @property
    def buckets(self) -> tuple[str, int, int] | None:
        """The function, number and largest distance of the relative buckets; None without a relative bias."""
        number, distance = self.relative_num_buckets, self.relative_max_distance
        return (str(self.relative_buckets), int(number or 0), int(distance or 0)) if _has_bias(self) else None

    @property
    def rotary_bases(self) -> tuple[int, ...]:
        """The rotary bases of global and of local layers; () without rotary positions."""
        return (int(self.rotary_base or 0), int(self.local_rotary_base or 0)) if _is_rotary(self) else ()

    @property
    def is_modern(self) -> bool:
        """True for ModernBERT's layer, False for the paper's."""
        return str(self.layer) == "modern"

    @property
    def window(self) -> int | None:
        """The attention window of layers that are not global; None if all layers attend to all tokens."""
        return self.local_attention or None

    @property
    def of_layers(self) -> dict[str, Any]:
        """The arguments of layers and heads that those of the decoder share."""
        return {"layer_norm_eps": self.layer_norm_eps, "modern": self.is_modern}

    @property
    def of_encoder_layers(self) -> dict[str, Any]:
        """The arguments of the encoder's layers, except dropout and backend."""
        return {
            "embed_dim": self.encoder_embed_dim,
            "ffn_embed_dim": self.encoder_ffn_embed_dim,
            "attention_heads": self.encoder_attention_heads,
            **self.of_layers,
            "rotary_bases": self.rotary_bases,
            "local_attention": self.window,
            "global_every": self.global_every,
        }

    @property
    def has_local_layers(self) -> bool:
        """True if layers that are not global compute something else: in a window, or with another rotary base."""
        return _has_local_layers(self)

    @property
    def eps(self) -> float:
        """The epsilon of all LayerNorms."""
        return self.layer_norm_eps

    def saved(self) -> dict[str, Any]:
        """Return the options that are saved with weights, because weights do not show them."""
        return {name: getattr(self, name) for name in self._acting("is_saved")}

    def sizes(self) -> dict[str, tuple[str, int]]:
        """Return the options that a weight shows: option -> name of the weight, and index of the dimension."""
        fields = type(self).__dataclass_fields__
        return {name: fields[name].metadata["shown_by"] for name in self._acting("shown_by")}

    def _acting(self, kind: str) -> list[str]:
        fields = dataclasses.fields(self)
        return [field.name for field in fields if field.metadata[kind] and field.metadata["acts"](self)]

    def check_buckets(self) -> None:
        """Raise a ValueError if relative buckets cannot be made, or contradict the positions."""
        if self.buckets is None:
            return
        function, number, distance = self.buckets
        if _is_rotary(self):
            raise ValueError(
                f"--relative-buckets {function} cannot be combined with --positions rotary: omit one of the two"
            )
        if number < 4 or number % 4:
            raise ValueError(
                f"--relative-num-buckets must be a positive multiple of 4, not {number}, because each direction has "
                "half of the buckets, and each half is split into single distances and ranges. For no relative bias "
                "use --relative-buckets none"
            )
        if distance <= number // 4 + 1:
            raise ValueError(
                f"--relative-max-distance ({distance}) must exceed --relative-num-buckets / 4 + 1 = "
                f"{number // 4 + 1}, because smaller distances have separate buckets"
            )


ENCODER_OPTIONS = tuple(field.name for field in dataclasses.fields(EncoderOptions))


# The widths and heads are those of the encoder and the decoder. The last two columns are for the relative bias (paper,
# Table 3). The decoder has at least one layer. The paper's decoder has self-attention and 1/6 to 1/3 of the encoder's
# layers (section 3): a deeper one learns to predict without a good encoder. In the modern sizes it is every second
# layer of the encoder, which predicts better at equal compute (docs/results/decoders.md). Sizes smaller than base are
# our choice; the paper has none. The modern sizes are Ettin's (Weller et al., 2025), except maelm_modern_tiny, which is
# for tests.
_COLUMNS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "decoder_layers",
    "relative_num_buckets",
    "relative_max_distance",
)
# ModernBERT and Ettin were trained with the rotary base 10,000 on sequences of up to 1,024 tokens, before both were
# extended to 8,192.
_COMMON = {"rotary_base": 10_000}
_POST_NORM = {"layer": "post_norm", "positions": "absolute", "dropout": 0.1, "attention_dropout": 0.1, **_COMMON}
_POST_NORM |= {"decoder_attention": "self"}
_MODERN = {"layer": "modern", "positions": "rotary", "dropout": 0.0, "attention_dropout": 0.0, **_COMMON}
_MODERN |= {"decoder_attention": "shared"}
SIZES: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_COLUMNS, numbers)), **(_MODERN if "modern" in name else _POST_NORM)}
    for name, numbers in {
        "maelm_tiny": (2, 128, 512, 2, 1, 32, 128),
        "maelm_small": (6, 384, 1536, 6, 2, 32, 128),
        "maelm_base": (12, 768, 3072, 12, 4, 32, 128),
        "maelm_base_plus_plus": (12, 768, 3072, 12, 4, 64, 128),
        "maelm_large_plus_plus": (24, 1024, 4096, 16, 4, 128, 256),
        "maelm_modern_tiny": (2, 128, 192, 2, 2, 32, 128),
        "maelm_modern_17m": (7, 256, 384, 4, 3, 32, 128),
        "maelm_modern_32m": (10, 384, 576, 6, 5, 32, 128),
        "maelm_modern_68m": (19, 512, 768, 8, 9, 32, 128),
        "maelm_modern_150m": (22, 768, 1152, 12, 11, 32, 128),
        "maelm_modern_400m": (28, 1024, 2624, 16, 14, 32, 128),
    }.items()
}
DEFAULT_SIZE = "maelm_base"


def shared_layers(encoder_layers: int) -> int:
    """Return how many layers a shared decoder has by default: half of the encoder's, but at least two of several."""
    return min(encoder_layers, max(2, encoder_layers // 2))
