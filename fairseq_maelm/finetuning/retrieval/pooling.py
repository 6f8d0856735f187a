"""From an encoder's states to one embedding of a text: what training and embedding share."""

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor

POOLINGS = ("mean", "first")
SIMILARITIES = ("cosine", "dot")


def embed_states(states: Tensor, padding: Tensor, pooling: str, similarity: str) -> Tensor:
    """Make one vector of each sequence.

    Args:
        states: <float>[B, S, D] the encoder's last states.
        padding: <bool>[B, S] True at padding, which never counts.
        pooling: "mean" of the states of all tokens, <s> and </s> among them, as in Sentence-BERT (Reimers and
            Gurevych, 2019, section 3); or "first", the state of <s>.
        similarity: "cosine" gives vectors length 1; "dot" does not.

    Returns:
        <float32>[B, D].
    """
    if pooling == "first":
        pooled = states[:, 0].float()
    else:
        kept = states.float().masked_fill(padding[:, :, None], 0.0)
        pooled = kept.sum(dim=1) / (~padding).sum(dim=1, keepdim=True)
    return F.normalize(pooled, dim=-1) if similarity == "cosine" else pooled


def cut(tokens: Sequence[int], dictionary: Dictionary, max_length: int) -> np.ndarray:
    """Put a text between the symbols <s> and </s>, cut at its end to <int64>[n] with n at most ``max_length``."""
    return np.array([dictionary.bos(), *tokens[: max_length - 2], dictionary.eos()], dtype=np.int64)
