"""The configuration of MAE-LM models for Hugging Face transformers, and relative position buckets."""

import math
from typing import Any

from transformers import MPNetConfig


class MaelmConfig(MPNetConfig):
    """MPNet's configuration with the options of MAE-LM.

    Args:
        relative_attention_buckets: bucket function: "t5", "reference" (the authors' code) or "none".
        relative_attention_max_distance: distance beyond which all distances share a bucket.
        mask_token_id: id of the mask symbol.
        masked_input: encoder input at masks: "dropped" (no input, MAE-LM), "kept" (the mask symbol, MLM), or "reset"
            (the mask symbol, but the decoder reads the mask embedding instead of the encoder's state).
        encoder_positions: "original", or "consecutive" to renumber the encoder's input tokens without gaps.
        decoder_layers: number of decoder layers; with 0, the LM head is applied to the encoder's states.
        decoder_attention: "self" for a decoder with self-attention, or "shared" if so many of the encoder's own layers
            predict masks: they are spread evenly, up to the last layer, and no visible token reads a mask.
        decoder_hidden_size: width of the decoder, by default the encoder's.
        decoder_intermediate_size: width of the decoder's feed-forward networks, by default the encoder's.
        decoder_attention_heads: number of the decoder's attention heads, by default the encoder's.
        share_decoder_positions: whether the decoder uses the encoder's position table.
        **kwargs: options of MPNet.
    """

    model_type = "maelm"

    def __init__(
        self,
        relative_attention_buckets: str = "t5",
        relative_attention_max_distance: int = 128,
        mask_token_id: int | None = None,
        masked_input: str = "dropped",
        encoder_positions: str = "original",
        decoder_layers: int = 0,
        decoder_attention: str = "self",
        decoder_hidden_size: int | None = None,
        decoder_intermediate_size: int | None = None,
        decoder_attention_heads: int | None = None,
        share_decoder_positions: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.relative_attention_buckets = relative_attention_buckets
        self.relative_attention_max_distance = relative_attention_max_distance
        self.mask_token_id = mask_token_id
        self.masked_input = masked_input
        self.encoder_positions = encoder_positions
        self.decoder_layers = decoder_layers
        self.decoder_attention = decoder_attention
        self.decoder_hidden_size = decoder_hidden_size or self.hidden_size
        self.decoder_intermediate_size = decoder_intermediate_size or self.intermediate_size
        self.decoder_attention_heads = decoder_attention_heads or self.num_attention_heads
        self.share_decoder_positions = share_decoder_positions


def relative_bucket(function: str, distance: int, num_buckets: int, max_distance: int) -> int:
    """Return the bucket of a relative position (key position minus query position).

    Args:
        function: "t5" (Raffel et al., 2020) or "reference" (the authors' code).
        distance: relative position.
        num_buckets: multiple of 4. Each direction has half of the buckets; half of those hold a single distance each.
        max_distance: distance beyond which all distances share a bucket.
    """
    half, size = num_buckets // 2, abs(distance)
    exact = half // 2
    if function == "t5":
        if size >= exact:
            growth = math.log(size / exact) / math.log(max_distance / exact)
            size = min(exact + int(growth * (half - exact)), half - 1)
        return size + half if distance > 0 else size
    if size >= exact:
        growth = math.log(size / exact) / math.log((max_distance - 1) / exact)
        size = min(exact + math.ceil(growth * (half - 1 - exact)), half - 1)
    return (size if distance >= 0 else -size) + half - 1
