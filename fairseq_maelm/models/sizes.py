"""The architectures: one row of numbers each."""

from typing import Any, Dict

# width, feed-forward width and heads are the encoder's and the decoder's; the last two columns are the buckets of the
# relative position bias and the distance from which all share one (paper, Table 3). A decoder has 1/6 to 1/3 of the
# encoder's layers (section 3), and at least one: with more it learns to predict without a good encoder. The sizes below
# base are ours.
_COLUMNS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "decoder_layers",
    "relative_num_buckets",
    "relative_max_distance",
)
SIZES: Dict[str, Dict[str, int]] = {
    name: dict(zip(_COLUMNS, numbers))
    for name, numbers in {
        "maelm_tiny": (2, 128, 512, 2, 1, 32, 128),
        "maelm_small": (6, 384, 1536, 6, 2, 32, 128),
        "maelm_base": (12, 768, 3072, 12, 4, 32, 128),
        "maelm_base_plus_plus": (12, 768, 3072, 12, 4, 64, 128),
        "maelm_large_plus_plus": (24, 1024, 4096, 16, 4, 128, 256),
    }.items()
}
DEFAULT_SIZE = "maelm_base"


def fill_from_size(config: Any, name: str) -> None:
    """Give every number that the user left open the value of the named architecture.

    Args:
        config: argparse.Namespace or omegaconf.DictConfig of the model; changed in place.
        name: row of the table; any other name means the default size.
    """
    for field, number in SIZES.get(name, SIZES[DEFAULT_SIZE]).items():
        if getattr(config, field, None) is None:
            setattr(config, field, number)
