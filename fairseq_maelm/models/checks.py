"""Refusing model options that cannot work, before anything is built."""

from typing import Any

from fairseq_maelm.modules.relative_position import BUCKET_FUNCTIONS, check_buckets


def check_config(config: Any) -> None:
    """Refuse numbers that cannot make a model.

    Raises:
        ValueError: says which option is wrong and what is possible.
    """
    for name in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"):
        if getattr(config, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1 and is {getattr(config, name)}")
    if config.encoder_embed_dim % config.encoder_attention_heads:
        raise ValueError(
            f"the model width ({config.encoder_embed_dim}) is not a multiple of the number of attention heads "
            f"({config.encoder_attention_heads}): change --encoder-attention-heads or --encoder-embed-dim"
        )
    if config.decoder_layers < 0:
        raise ValueError(f"--decoder-layers must be 0 or more and is {config.decoder_layers}")
    if not config.init_std > 0.0:
        raise ValueError(f"--init-std must be positive and is {config.init_std}")
    for name in ("dropout", "attention_dropout", "pooler_dropout"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"--{name.replace('_', '-')} must lie in [0, 1) and is {getattr(config, name)}")
    if config.relative_buckets != "none":
        if config.relative_buckets not in BUCKET_FUNCTIONS:
            raise ValueError(f"unknown --relative-buckets {config.relative_buckets}")
        check_buckets(config.relative_num_buckets, config.relative_max_distance)
