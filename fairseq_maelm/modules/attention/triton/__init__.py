"""Attention by Triton kernels that look up the relative bias themselves.

The kernels need a relative bias or a window, and support no other hidden keys than padding. In all other cases, such as
decoders, torch's attention is used.
"""

from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.packed_qkv import attend_parts
from fairseq_maelm.modules.attention.triton import operator


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: AttentionBias | None, dropout: float, strict: bool = True
) -> Tensor:
    """Compute ``reference.attend``; unless ``strict``, torch's attention takes tensors that the kernels cannot take.

    Raises:
        ValueError: the kernels cannot run; the message says why.
    """
    if not _suits(query, bias, strict):
        return sdpa.attend(query, key, value, bias, dropout)
    # The kernels already return zeros for sequences without any visible key.
    return operator.relative_attention(query, key, value, *_arguments(query, bias, dropout))


def attend_qkv(qkv: Tensor, bias: AttentionBias | None, dropout: float, strict: bool = True) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query = qkv[:, :, 0].transpose(1, 2)
    if not _suits(query, bias, strict):
        return attend_parts(sdpa.attend, qkv, bias, dropout)
    return operator.relative_attention_qkv(qkv, *_arguments(query, bias, dropout))


def skips_hidden(query: Tensor, bias: AttentionBias, strict: bool = True) -> bool:
    """Return True if ``attend``, given this bias with a window, would skip the keys that the window hides."""
    return (bias.of_distance is not None or bias.max_positions is not None) and _accepts(query, bias, strict)


def _suits(query: Tensor, bias: AttentionBias | None, strict: bool) -> bool:
    if bias is None or (bias.of_distance is None and (bias.window is None or bias.max_positions is None)):
        return False
    return _accepts(query, bias, strict)


def _accepts(query: Tensor, bias: AttentionBias, strict: bool) -> bool:
    if bias.query_positions is not None or bias.hidden is not None or bias.causal:
        return False
    reason = operator.unavailable_because(query)
    if reason is not None and strict:
        raise ValueError(f"--attention triton cannot run: {reason}. Use --attention auto")
    return reason is None


def _arguments(
    query: Tensor, bias: AttentionBias | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor | None, float, Tensor | None, int | None]:
    """Return the kernels' other arguments: relative bias, positions, lengths, dropout, seed of dropout, window."""
    assert bias is not None and bias.positions is not None
    of_distance = bias.of_distance
    if of_distance is None:
        assert bias.max_positions is not None
        of_distance = query.new_zeros(query.shape[1], 2 * bias.max_positions - 1)
    seed = operator.draw_seed(query.device) if dropout else None
    return of_distance.float(), bias.positions, bias.lengths, dropout, seed, bias.window
