"""Attention by Triton kernels that look up the relative bias themselves.

The kernels need a relative bias or a window, and support no other hidden keys than padding. In all other cases, such as
decoders, torch's attention is used.
"""

from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.context import AttentionContext
from fairseq_maelm.modules.attention.streams import attend_parts
from fairseq_maelm.modules.attention.triton import operator


def attend(
    query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float, strict: bool = True
) -> Tensor:
    """Compute ``plain_attention``; unless ``strict``, torch's attention takes tensors that the kernels cannot take.

    Raises:
        ValueError: the kernels cannot run; the message says why.
    """
    if not _suits(query, context, strict):
        return sdpa.attend(query, key, value, context, dropout)
    # The kernels already return zeros for sequences without any visible key.
    return operator.relative_attention(query, key, value, *_arguments(query, context, dropout))


def attend_qkv(qkv: Tensor, context: AttentionContext, dropout: float, strict: bool = True) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query = qkv[:, :, 0].transpose(1, 2)
    if not _suits(query, context, strict):
        return attend_parts(sdpa.attend, qkv, context, dropout)
    return operator.relative_attention_qkv(qkv, *_arguments(query, context, dropout))


def skips_hidden(query: Tensor, context: AttentionContext, strict: bool = True) -> bool:
    """Return True if ``attend``, given this context with a window, would skip the keys that the window hides."""
    return (context.relative_bias is not None or context.keys.max_positions is not None) and _accepts(
        query, context, strict
    )


def _suits(query: Tensor, context: AttentionContext, strict: bool) -> bool:
    windowed = context.visibility.window is not None and context.keys.max_positions is not None
    if context.relative_bias is None and not windowed:
        return False
    return _accepts(query, context, strict)


def _accepts(query: Tensor, context: AttentionContext, strict: bool) -> bool:
    if not context.reads_from_everywhere or context.visibility.hidden is not None or context.visibility.causal:
        return False
    reason = operator.unavailable_because(query)
    if reason is not None and strict:
        raise ValueError(f"--attention triton cannot run: {reason}. Use --attention auto")
    return reason is None


def _arguments(
    query: Tensor, context: AttentionContext, dropout: float
) -> tuple[Tensor, Tensor, Tensor | None, float, Tensor | None, int | None]:
    """Return the kernels' other arguments: relative bias, positions, lengths, dropout, seed of dropout, window."""
    positions, _, max_positions = context.keys
    assert positions is not None
    of_distance = context.relative_bias
    if of_distance is None:
        assert max_positions is not None
        of_distance = query.new_zeros(query.shape[1], 2 * max_positions - 1)
    seed = operator.draw_seed(query.device) if dropout else None
    return of_distance.float(), positions, context.visibility.lengths, dropout, seed, context.visibility.window
