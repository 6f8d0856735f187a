"""The embedding of a text from the encoder's states, for training and for ``maelm embed``."""

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor

POOLINGS = ("mean", "first")
SIMILARITIES = ("cosine", "dot")


def embed_states(states: Tensor, padding: Tensor, pooling: str, similarity: str) -> Tensor:
    """Pool the states of each sequence into one vector.

    Args:
        states: <float>[B, S, D] the encoder's last states.
        padding: <bool>[B, S] True at padding, which is ignored.
        pooling: "mean" of the states of all tokens, <s> and </s> included, as in Sentence-BERT (Reimers and Gurevych,
            2019, section 3); or "first", the state of <s>.
        similarity: "cosine" normalizes the vectors to length 1; "dot" does not.

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
    """Put a text between <s> and </s>, cut to ``max_length`` tokens: <int64>[n]."""
    return np.array([dictionary.bos(), *tokens[: max_length - 2], dictionary.eos()], dtype=np.int64)
