"""Attention with a learned relative bias as torch operators, without [B, H, S, S] tensors or computation on padding.

Importing this module does not import triton. ``torch.compile`` does not trace the kernels: each operator is one node of
the graph. Autograd, autocast and activation checkpointing see an ordinary differentiable function.

The kernels need a relative bias or a window, and support no other hidden keys than padding. In all other cases, such as
decoders, ``attend`` uses torch's attention.
"""

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.context import AttentionContext
from fairseq_maelm.modules.attention.streams import attend_parts
from fairseq_maelm.modules.attention.triton import padded_length

INSTALLED = importlib.util.find_spec("triton") is not None
# If this variable is set when triton is imported, Triton's interpreter runs the kernels on any device, as in tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST_HEAD = 128
OLDEST_CAPABILITY = (8, 0)


def attend(
    query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float, strict: bool = True
) -> Tensor:
    """Compute ``plain_attention``; a ValueError says why the kernels cannot run.

    Unless ``strict``, torch's attention takes tensors that the kernels cannot take.
    """
    if not _suits(query, context, strict):
        return sdpa.attend(query, key, value, context, dropout)
    # The kernels already return zeros for sequences without any visible key.
    return relative_attention(query, key, value, *_arguments(query, context, dropout))


def attend_qkv(qkv: Tensor, context: AttentionContext, dropout: float, strict: bool = True) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query = qkv[:, :, 0].transpose(1, 2)
    if not _suits(query, context, strict):
        return attend_parts(sdpa.attend, qkv, context, dropout)
    return relative_attention_qkv(qkv, *_arguments(query, context, dropout))


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
    reason = unavailable_because(query)
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
    seed = draw_seed(query.device) if dropout else None
    return of_distance.float(), positions, context.visibility.lengths, dropout, seed, context.visibility.window


def unavailable_because(query: Tensor) -> str | None:
    """Return why ``relative_attention`` cannot take queries <float>[B, H, S, d_h], after autocast; None if it can."""
    if not INSTALLED:
        return "triton is not installed; it comes with torch's CUDA builds"
    if query.dtype not in DTYPES:
        return f"the kernels take float16, bfloat16 and float32, not {query.dtype}"
    if query.shape[-1] > WIDEST_HEAD:
        return f"the kernels take heads of a width up to {WIDEST_HEAD}, not {query.shape[-1]}"
    if INTERPRETED:
        return None
    if query.device.type != "cuda" or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, and the queries are on {query.device}"
    capability = torch.cuda.get_device_capability(query.device)
    if capability < OLDEST_CAPABILITY:
        return (
            f"the kernels need compute capability 8.0 or later, and {query.device} has {capability[0]}.{capability[1]}"
        )
    return None


def draw_seed(device: torch.device) -> Tensor:
    """Draw a dropout seed <int64>[1] from the device's random state, without synchronization."""
    return torch.randint(2**62, (1,), device=device)


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(d_h) + bias) V with bias[b, h, i, j] = of_distance[h, distance + P - 1].

    The distance is positions[b, j] - positions[b, i] (Raffel et al., 2020, section 2.1). All four float inputs get
    gradients; the gradient of ``of_distance`` is summed in a fixed order.

    Args:
        query: <float16, bfloat16 or float32>[B, H, S, d_h], d_h at most 128, with any strides. Views of one joint
            tensor are read in place. Under autocast, inputs are cast to autocast's dtype.
        key: as ``query``.
        value: as ``query``.
        of_distance: <float>[H, 2 P - 1] bias of the distances 1 - P to P - 1; used in float32.
        positions: <int64>[B or 1, S] original positions in [0, P), in any order, without duplicates in a sequence.
        lengths: <int64>[B] number of tokens of each right-padded sequence, or None without padding. Outputs at padding
            are zero, and inputs and gradients at padding are not read.
        dropout: probability of dropping an attention weight, in [0, 1).
        seed: <int64>[1] from ``draw_seed``, on the device of ``query``; necessary if ``dropout`` is positive. Dropout
            depends only on the seed, the sequence, the head and both positions.
        window: hide keys whose positions are more than window // 2 from the query's. Tiles of hidden keys are skipped,
            so positions must ascend in each sequence.

    Returns:
        <float>[B, H, S, d_h], stored as [B, S, H, d_h], so that joining the heads needs no copy.

    Raises:
        ValueError: shapes, types, devices or dropout do not fit, or the kernels cannot run here.
    """
    query, key, value = _cast(query), _cast(key), _cast(value)
    if not query.shape == key.shape == value.shape or not query.dtype == key.dtype == value.dtype:
        described = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in (query, key, value))
        raise ValueError(f"queries, keys and values must have the same shape and dtype, but are {described}")
    _check(query, of_distance, positions, lengths, dropout, seed)
    output, _ = _attend(query, key, value, of_distance.float(), positions, lengths, dropout, seed, window)
    return output.transpose(1, 2)


def relative_attention_qkv(
    qkv: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Compute ``relative_attention`` for queries, keys and values in one tensor, without copying the gradients.

    ``qkv`` is <float16, bfloat16 or float32>[B, S, 3, H, d_h], the result <float>[B, S, H, d_h]. The rest, errors
    included, is as in ``relative_attention``.
    """
    qkv = _cast(qkv)
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"joint queries, keys and values must have shape [B, S, 3, H, d_h], not {list(qkv.shape)}")
    _check(_split_qkv(qkv)[0], of_distance, positions, lengths, dropout, seed)
    output, _ = _attend_qkv(qkv, of_distance.float(), positions, lengths, dropout, seed, window)
    return output


def _cast(tensor: Tensor) -> Tensor:
    """Cast to autocast's dtype, as torch's attention does."""
    device_type = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else tensor


def _split_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split <float>[B, S, 3, H, d_h] into three views <float>[B, H, S, d_h]."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return query, key, value


def _check(
    query: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    """Refuse inputs that the kernels would misread; check no values on the device, to avoid synchronization."""
    if query.dim() != 4:
        raise ValueError(f"queries, keys and values must have shape [B, H, S, d_h], not {list(query.shape)}")
    batch, heads, length, _ = query.shape
    # Looking up the device would break the compiled graph.
    reason = None if torch.compiler.is_compiling() else unavailable_because(query)
    if reason is not None:
        raise ValueError(f"attention by Triton kernels cannot run: {reason}. Choose another --attention")
    if of_distance.dim() != 2 or of_distance.shape[0] != heads or of_distance.shape[1] % 2 == 0:
        raise ValueError(f"of_distance must have shape [H = {heads}, 2 P - 1], not {list(of_distance.shape)}")
    if positions.dtype != torch.int64 or positions.shape not in ((batch, length), (1, length)):
        raise ValueError(
            f"positions must be <int64>[{batch} or 1, {length}], not {positions.dtype}{list(positions.shape)}"
        )
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.shape != (batch,)):
        raise ValueError(f"lengths must be <int64>[{batch}], not {lengths.dtype}{list(lengths.shape)}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a probability in [0, 1), not {dropout}")
    if dropout > 0 and (seed is None or seed.dtype != torch.int64 or seed.shape != (1,)):
        raise ValueError("dropout needs a seed <int64>[1] from draw_seed")
    for tensor in (of_distance, positions, lengths, seed):
        if tensor is not None and tensor.device != query.device:
            raise ValueError(f"all tensors must be on the queries' device {query.device}, not on {tensor.device}")


# The operators, private to this module. Outputs after the first one are for the backward pass.


@torch.library.custom_op("fairseq_maelm::relative_attention", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    from .launch import forward

    return forward(query, key, value, of_distance, positions, lengths, dropout, seed, window)


@torch.library.custom_op("fairseq_maelm::relative_attention_qkv", mutates_args=())
def _attend_qkv(
    qkv: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    from .launch import forward

    return forward(*_split_qkv(qkv), of_distance, positions, lengths, dropout, seed, window)


@torch.library.custom_op("fairseq_maelm::relative_attention_backward", mutates_args=())
def _attend_backward(
    output_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_distance: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    window: int | None,
    output: Tensor,
    log_sums: Tensor,
    with_bias: bool,
) -> tuple[Tensor, Tensor]:
    from .launch import backward

    return backward(
        output_gradient, query, key, value, of_distance, positions, lengths, dropout, seed, window, output, log_sums,
        with_bias,
    )  # fmt: skip


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor, lengths: Tensor | None,
      dropout: float, seed: Tensor | None, window: int | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _outputs_like(query)


@_attend_qkv.register_fake
def _(qkv: Tensor, of_distance: Tensor, positions: Tensor, lengths: Tensor | None,
      dropout: float, seed: Tensor | None, window: int | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _outputs_like(_split_qkv(qkv)[0])


def _outputs_like(query: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty tensors of the shapes that the forward kernels return."""
    batch, heads, length, head_dim = query.shape
    log_sums = query.new_empty(batch, heads, padded_length(length), dtype=torch.float32)
    return query.new_empty(batch, length, heads, head_dim), log_sums


@_attend_backward.register_fake
def _(output_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor,
      lengths: Tensor | None, dropout: float, seed: Tensor | None, window: int | None, output: Tensor,
      log_sums: Tensor, with_bias: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, heads, length, head_dim = query.shape
    of_bias = of_distance.shape if with_bias else (0,)
    return query.new_empty(batch, length, 3, heads, head_dim), of_distance.new_empty(of_bias)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the inputs and outputs of the forward kernels."""
    *tensors, ctx.dropout, seed, ctx.window = inputs
    ctx.save_for_backward(*tensors, seed, *output)


def _gradients(ctx: Any, output_gradient: Tensor, *unused: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the joint gradient of queries, keys and values, and the gradient of the bias if it is needed."""
    *projections, of_distance, positions, lengths, seed, output, log_sums = ctx.saved_tensors
    query, key, value = projections if len(projections) == 3 else _split_qkv(*projections)
    with_bias = ctx.needs_input_grad[len(projections)]
    qkv, of_bias = _attend_backward(
        output_gradient, query, key, value, of_distance, positions, lengths, ctx.dropout, seed, ctx.window, output,
        log_sums, with_bias,
    )  # fmt: skip
    return qkv, of_bias if with_bias else None


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    qkv, of_bias = _gradients(ctx, *gradients)
    return (*_split_qkv(qkv), of_bias, None, None, None, None, None)


def _backward_qkv(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    qkv, of_bias = _gradients(ctx, *gradients)
    return (qkv, of_bias, None, None, None, None, None)


_attend.register_autograd(_backward, setup_context=_keep_for_backward)
_attend_qkv.register_autograd(_backward_qkv, setup_context=_keep_for_backward)
