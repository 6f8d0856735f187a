"""The architectures: one row of numbers each."""

import math
from typing import Any

# "absolute": a table of position embeddings and, in the encoder, a learned relative bias.
POSITIONS = ("absolute", "rotary")

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


def fill_from_size(config: Any, name: str) -> None:
    """Fill in options that are None or missing with those of a named architecture.

    With 0 decoder layers, a missing decoder attention becomes "self": the others require a decoder. A missing number of
    decoder layers becomes ``shared_layers`` with decoder attention "shared", and a sixth of the encoder's if only the
    architecture's own decoder is shared.

    Args:
        config: argparse.Namespace or omegaconf.DictConfig of the model; changed in place.
        name: name of the architecture; any other name means the default size.
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
