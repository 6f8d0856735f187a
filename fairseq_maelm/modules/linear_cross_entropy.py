"""Cross-entropy after a projection to the vocabulary, with only a part of the logits in memory at a time.

Autograd would store the logits <float>[M, V], their log-probabilities and two gradients of that size. Here, each chunk
of rows is processed at once: logits, loss, gradient of the logits, and the chunk's share of the gradients of states,
weight and bias. Hsu et al. (2024, "Liger Kernel") do this with GPU kernels.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.autocast import autocast_dtype

# Number of logits in a chunk. Each chunk costs a pass over the weight's gradient, so it should have hundreds of rows:
# with 64,000 symbols, these numbers give 262 and 2,097 rows.
CPU_CHUNK = 2**24
DEVICE_CHUNK = 2**27
# Number of probabilities that are computed at a time, small enough for a CPU's cache.
CPU_BLOCK = 2**18
# Tensor cores need aligned rows; matrix products on a CPU do not.
DEVICE_MULTIPLE = 64
# Rows whose log-probabilities a CPU computes at a time: twice as fast as whole chunks with 32,768 symbols.
_ROWS_IN_CACHE = 64


class MaskedTokenLoss(NamedTuple):
    """Sums over predicted tokens, on their device."""

    loss: Tensor  # <float32>[] cross-entropy in nats; <float64> from double precision
    correct: Tensor  # <int64>[] targets with the largest logit; of equal logits the first counts


class ChunkSettings(NamedTuple):
    """Settings of the computation, which change the result only by rounding.

    For the computation, the vocabulary is padded to a ``multiple``. Padding copies the weight, as the cast under
    autocast does anyway.
    """

    dtype: torch.dtype  # of logits and matrix products; losses and sums over chunks are at least <float32>
    chunk: int  # most logits that are stored at a time; a longer row is still computed whole
    block: int  # the same for probabilities in single precision
    multiple: int


class _Gradients(NamedTuple):
    """Gradients of states, weight and bias; the latter two are summed over chunks, in the dtype of the loss."""

    states: Tensor  # <dtype>[M, D]
    weight: Tensor  # <float>[V, D]
    bias: Tensor  # <float>[V]


def default_settings(states: Tensor, weight: Tensor) -> ChunkSettings:
    """Return the default settings for a device, with autocast's dtype or, without autocast, the weight's."""
    device = states.device.type
    dtype = autocast_dtype(device) or weight.dtype
    if device == "cpu":
        return ChunkSettings(dtype, CPU_CHUNK, CPU_BLOCK, 1)
    return ChunkSettings(dtype, DEVICE_CHUNK, DEVICE_CHUNK, DEVICE_MULTIPLE)


def chunks(rows: int, vocabulary_size: int, chunk: int) -> Iterator[slice]:
    """Yield the rows in as few chunks as ``chunk`` allows; all chunks but the last have equal size."""
    if rows:
        size = ceil(rows / ceil(rows / max(1, chunk // vocabulary_size)))
        for start in range(0, rows, size):
            yield slice(start, start + size)


class Projection(NamedTuple):
    """The cast and padded weight <dtype>[V, D] and bias <dtype>[V]."""

    weight: Tensor
    bias: Tensor


def pad_vocabulary(weight: Tensor, bias: Tensor, settings: ChunkSettings) -> Projection:
    """Cast and pad the projection; the added symbols get the logit -inf, so their probability and gradient are 0."""
    vocabulary_size = len(weight)
    size = ceil(vocabulary_size / settings.multiple) * settings.multiple
    if size == vocabulary_size:
        return Projection(weight.to(settings.dtype), bias.to(settings.dtype))
    padded = weight.new_empty(size, weight.shape[1], dtype=settings.dtype)
    padded[:vocabulary_size] = weight
    padded[vocabulary_size:] = 0
    padded_bias = bias.new_full((size,), float("-inf"), dtype=settings.dtype)
    padded_bias[:vocabulary_size] = bias
    return Projection(padded, padded_bias)


def _score(logits: Tensor, target: Tensor, scale: Tensor | None, of_bias: Tensor | None) -> MaskedTokenLoss:
    """Compute the loss of logits <dtype>[m, V] with targets <int64>[m, 1].

    With ``of_bias`` <float>[V], also overwrite the logits by their gradient, (probabilities - one-hot targets) * scale,
    and add the gradient of the bias to ``of_bias``.
    """
    probabilities = F.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    largest, most_probable, correct = _largest(logits, probabilities, target)
    # The probability of the largest logit is at least 1 / V, so its logarithm is accurate.
    log_sum = largest - most_probable.log()
    log_probs = logits.gather(1, target) - log_sum
    if of_bias is not None:
        # Subtracting 1 from a rounded probability close to 1 would lose all digits.
        gradient = probabilities.scatter_(1, target, torch.expm1(log_probs))
        if scale is not None:
            gradient.mul_(scale)
        of_bias.add_(gradient.sum(dim=0))
        logits.copy_(gradient)
    return MaskedTokenLoss(-log_probs.sum(), correct.sum())


def _largest(logits: Tensor, probabilities: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's largest logit, its probability, and whether its (first) index is the target, all [m, 1]."""
    if logits.device.type != "cpu":
        largest, index = logits.max(dim=-1, keepdim=True)
        return largest, probabilities.gather(1, index), index == target
    # On a CPU, amax takes a tenth of the time of argmax, which is therefore used only where another symbol has the
    # target's logit.
    of_target = logits.gather(1, target)
    others = logits.scatter_(1, target, float("-inf")).amax(dim=-1, keepdim=True)
    logits.scatter_(1, target, of_target)
    correct, tied = of_target > others, (of_target == others)[:, 0]
    if tied.any():
        correct[tied] = logits[tied].argmax(dim=-1, keepdim=True) == target[tied]
    return torch.maximum(of_target, others), probabilities.amax(dim=-1, keepdim=True), correct


def _empty_gradients(states: Tensor, projection: Projection) -> _Gradients:
    """Allocate the gradients. The weight's is zeroed only if there are no rows; else the first chunk overwrites it."""
    precise = torch.promote_types(states.dtype, torch.float32)
    weight = torch.empty_like if len(states) else torch.zeros_like
    return _Gradients(
        torch.empty_like(states),
        weight(projection.weight, dtype=precise),
        torch.zeros_like(projection.bias, dtype=precise),
    )


def _add_products(gradients: _Gradients, part: slice, logits: Tensor, states: Tensor, projection: Projection) -> None:
    """Add a chunk's gradients, given that of logits <dtype>[m, V]. The first chunk overwrites the weight gradient."""
    torch.mm(logits, projection.weight, out=gradients.states[part])
    if logits.dtype == gradients.weight.dtype:
        gradients.weight.addmm_(logits.t(), states, beta=float(part.start > 0))
    elif part.start:
        gradients.weight.add_(torch.mm(logits.t(), states))
    else:
        gradients.weight.copy_(torch.mm(logits.t(), states))


def _walk(
    states: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    settings: ChunkSettings,
    with_gradients: bool,
    scale: Tensor | None = None,
) -> tuple[MaskedTokenLoss, _Gradients | None]:
    """Compute the loss over all chunks and, if asked for, the gradients of the loss times ``scale``."""
    states, target = states.to(settings.dtype), target[:, None]
    projection = pad_vocabulary(weight, bias, settings)
    gradients = _empty_gradients(states, projection) if with_gradients else None
    loss = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
    correct = target.new_zeros(())
    for part in chunks(len(states), len(projection.bias), settings.chunk):
        logits = torch.addmm(projection.bias, states[part], projection.weight.t())
        wanted = target[part]
        for block in chunks(len(wanted), logits.shape[1], settings.block):
            of_bias = None if gradients is None else gradients.bias
            partial = _score(logits[: len(wanted)][block], wanted[block], scale, of_bias)
            loss += partial.loss
            correct += partial.correct
        if gradients is not None:
            logits[len(wanted) :].zero_()
            _add_products(gradients, part, logits, states[part], projection)
        del logits  # frees the logits before the next chunk allocates its own
    return MaskedTokenLoss(loss, correct), gradients


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients together with the loss if possible; the backward pass then only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        target: Tensor,
        settings: ChunkSettings,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(states, weight, bias, target)
        ctx.settings = settings
        # fp16 is coarse below 6e-5 and loses most probabilities of a large vocabulary unless the loss is scaled. Only
        # the backward pass knows the scale, so it recomputes the logits and then computes the gradients.
        early = with_gradients and settings.dtype != torch.float16
        result, ctx.gradients = _walk(states, weight, bias, target, settings, early)
        ctx.mark_non_differentiable(result.correct)
        return result.loss, result.correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, unused: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, target = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # fp16, or a second backward pass through the same graph
            _, gradients = _walk(states, weight, bias, target, ctx.settings, True, scale)
        else:
            for gradient in gradients:
                gradient.mul_(scale)
        of_weight, of_bias = gradients.weight, gradients.bias
        if len(of_weight) > len(weight):  # torch would not accumulate other gradients in place into a view
            of_weight, of_bias = of_weight[: len(weight)], of_bias[: len(bias)]
        return gradients.states.to(states.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype), None, None, None


@torch.no_grad()
def linear_log_probabilities(states: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """Compute ``F.log_softmax(F.linear(states, weight, bias), dim=-1).gather(1, target)`` without storing all logits.

    Of states <float>[M, D], with weight [V, D], bias [V] and target <int64>[M, K], return <float32>[M, K], or <float64>
    from double precision; without gradients.
    """
    on_cpu = states.device.type == "cpu"
    precise = torch.promote_types(states.dtype, torch.float32)
    log_probabilities = []
    for part in chunks(len(states), len(weight), CPU_CHUNK if on_cpu else DEVICE_CHUNK):
        # Autocast caches the cast weight.
        logits = F.linear(states[part], weight, bias)
        rows = _ROWS_IN_CACHE if on_cpu else len(logits)
        for some, wanted in zip(logits.split(rows), target[part].split(rows)):
            log_probabilities.append(F.log_softmax(some, dim=-1, dtype=precise).gather(1, wanted))
    return torch.cat(log_probabilities) if log_probabilities else states.new_empty(target.shape, dtype=precise)


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor, target: Tensor, settings: ChunkSettings | None = None
) -> MaskedTokenLoss:
    """Compute ``F.cross_entropy(F.linear(states, weight, bias), target, reduction="sum")``; count correct predictions.

    Args:
        states: <float>[M, D]; M may be 0.
        weight: <float>[V, D].
        bias: <float>[V].
        target: <int64>[M] in [0, V). If it is shorter, the last rows of states are spare: their loss is 0.
        settings: settings of the computation; ``default_settings`` if None.

    Returns:
        Sums over the targets. ``loss`` is differentiable by states, weight and bias.
    """
    settings = settings or default_settings(states, weight)
    with_gradients = torch.is_grad_enabled() and any(each.requires_grad for each in (states, weight, bias))
    loss, correct = _LinearCrossEntropy.apply(states, weight, bias, target, settings, with_gradients)
    return MaskedTokenLoss(loss, correct)
