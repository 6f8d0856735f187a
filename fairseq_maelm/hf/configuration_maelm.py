"""The configuration of MAE-LM models for Hugging Face transformers, and relative position buckets."""

import math
from typing import Any

from transformers import MPNetConfig


class MaelmConfig(MPNetConfig):
    """MPNet's configuration with other relative positions.

    Args:
        relative_attention_buckets: bucket function: "t5", "reference" (the authors' code) or "none".
        relative_attention_max_distance: distance beyond which all distances share a bucket.
        **kwargs: options of MPNet.
    """

    model_type = "maelm"

    def __init__(
        self,
        relative_attention_buckets: str = "t5",
        relative_attention_max_distance: int = 128,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.relative_attention_buckets = relative_attention_buckets
        self.relative_attention_max_distance = relative_attention_max_distance


def relative_bucket(function: str, distance: int, num_buckets: int, max_distance: int) -> int:
    """Return the bucket of a relative position (key position minus query position).

    ``function`` is "t5" (Raffel et al., 2020) or "reference" (the authors' code). Each direction has half of the
    buckets, whose number is a multiple of 4; half of those hold a single distance each. All distances beyond
    ``max_distance`` share a bucket.
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
