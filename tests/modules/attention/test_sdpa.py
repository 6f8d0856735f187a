"""Attention by torch on a GPU: padding without a mask, and never cuDNN."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_problem import context_of
from torch import Tensor

from fairseq_maelm.modules.attention import sdpa
from fairseq_maelm.modules.attention.context import AttentionContext, plain_attention


def flash(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *others: Any) -> tuple[Tensor]:
    """Attend within each of the sequences that begin at ``starts``, as torch's function does on a GPU."""
    assert starts.dtype == torch.int32 and others[0] is starts and others[3:] == (0.0, False, False)
    longest = int(starts.diff().max())
    assert others[1] >= longest and others[2] >= longest
    parts = []
    for rows in zip(*(each.tensor_split(starts[1:-1].long()) for each in (query, key, value))):
        heads = (each.transpose(0, 1) for each in rows)
        parts.append(F.scaled_dot_product_attention(*heads).transpose(0, 1))
    return (torch.cat(parts),)


@pytest.mark.parametrize("lengths", [[5, 2, 5], [1, 4, 3], [5, 0, 5]])
def test_padding_is_a_sequence_of_its_own(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    monkeypatch.setattr(sdpa, "_has_flash", lambda query: True)
    torch.manual_seed(1)
    # Views of one product, as in a layer.
    qkv = torch.randn(3, 5, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    counts = torch.tensor(lengths)
    weights = torch.randn(3, 2, 5, 8).masked_fill((torch.arange(5) >= counts[:, None])[:, None, :, None], 0.0)
    results = []
    for attend, positions in ((plain_attention, None), (sdpa.attend, torch.arange(5)[None])):
        output = attend(query, key, value, context_of(positions=positions, lengths=counts), 0.0) * weights
        results.append((output, *torch.autograd.grad(output.square().sum(), qkv, retain_graph=True)))
    for result, expected in zip(*results):
        torch.testing.assert_close(result, expected)


def test_what_else_is_hidden_takes_a_mask_and_other_queries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "attend_between", lambda *arguments: pytest.fail("no separate sequences"))
    monkeypatch.setattr(sdpa, "_has_flash", lambda query: True)
    query, key = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 5, 8)
    lengths = torch.tensor([5, 2])
    with_positions = context_of(positions=torch.arange(5)[None], lengths=lengths)
    for states, bias in ((query, with_positions), (key, context_of(lengths=lengths))):
        torch.testing.assert_close(
            sdpa.attend(states, key, key, bias, 0.0),
            plain_attention(states, key, key, context_of(lengths=lengths), 0.0),
        )


@pytest.mark.parametrize(
    "bias", [context_of(), context_of(causal=True), context_of(hidden=torch.zeros(2, 3, dtype=torch.bool))]
)
def test_cudnn_is_never_asked_on_a_gpu(bias: AttentionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attention(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool) -> Tensor:
        asked.append((torch.backends.cuda.cudnn_sdp_enabled(), mask is None, causal))
        return torch.zeros(2, 2, 3, 8)

    monkeypatch.setattr(sdpa, "F", SimpleNamespace(scaled_dot_product_attention=attention))
    query = SimpleNamespace(is_cuda=True, shape=(2, 2, 3, 8), dtype=torch.float32, device=torch.device("cpu"))
    sdpa.attend(query, query, query, bias, 0.0)
    hides = bias.visibility.hidden is not None
    assert asked == [(False, not hides, bias.visibility.causal)]
    assert torch.backends.cuda.cudnn_sdp_enabled()


def on_gpu(lengths: list[int], width: int, dtype: torch.dtype, dropout: float = 0.0) -> list[Tensor]:
    """Return output and gradients of the same random attention: by torch on a GPU, in float64 by the plain formula."""
    torch.manual_seed(2)
    counts, length = torch.tensor(lengths), max(lengths)
    drawn = torch.randn(len(lengths), length, 3, 2, width, dtype=torch.float64).to(dtype)
    inside = (torch.arange(length) < counts[:, None])[:, None, :, None]
    device, attend = ("cpu", plain_attention) if dtype == torch.float64 else ("cuda", sdpa.attend)
    qkv = drawn.to(device).requires_grad_()
    bias = context_of(positions=torch.arange(length, device=device)[None], lengths=counts.to(device))
    output = attend(*qkv.permute(2, 0, 3, 1, 4), bias, dropout) * inside.to(device)
    (gradient,) = torch.autograd.grad(output.sin().sum(), qkv)
    return [output.detach().double().cpu(), gradient.double().cpu()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lengths", [[130, 64, 1], [64, 64]], ids=["padded", "dense"])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-4)])
def test_equals_plain_on_a_gpu(lengths: list[int], width: int, dtype: torch.dtype, most: float) -> None:
    """Half precision by flash attention among tokens and among padding, single precision by a mask."""
    for result, exact in zip(on_gpu(lengths, width, dtype), on_gpu(lengths, width, torch.float64)):
        assert (result - exact).norm() < most * exact.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_of_padded_sequences_on_a_gpu() -> None:
    """Half the weights are dropped and the others doubled: outputs stay where they were on average, and are noisy."""
    exact = on_gpu([256, 200], 64, torch.float64)[0]
    output, gradient = on_gpu([256, 200], 64, torch.bfloat16, dropout=0.5)
    assert gradient.isfinite().all() and gradient.norm() > 0
    assert 0.3 < (output - exact).norm() / exact.norm() < 3
    assert abs((output - exact).mean()) < 0.1 * (output - exact).std()
