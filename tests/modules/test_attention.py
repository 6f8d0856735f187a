"""The fast attention equals the written-out one in outputs and all gradients."""

import pytest
import torch

from fairseq_maelm.modules.attention import SelfAttention, attend, attend_plainly, attention_bias

B, H, S, WIDTH = 3, 2, 9, 8


def inputs(bias_shape, dtype=torch.float64, requires_grad=True):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(B, H, S, WIDTH, generator=generator, dtype=dtype) for _ in range(3)]
    bias = None if bias_shape is None else torch.randn(bias_shape, generator=generator, dtype=dtype)
    for tensor in [*tensors, bias]:
        if tensor is not None:
            tensor.requires_grad_(requires_grad)
    return tensors, bias


@pytest.mark.parametrize("bias_shape", [None, (B, H, S, S), (1, H, S, S), (B, 1, 1, S)])
def test_fast_equals_plain(bias_shape):
    results = []
    for function in (attend, attend_plainly):
        (query, key, value), bias = inputs(bias_shape)
        output = function(query, key, value, bias, 0.0)
        (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum().backward()
        gradients = [tensor.grad for tensor in (query, key, value, bias) if tensor is not None]
        results.append([output.detach(), *gradients])
    assert len(results[0]) == (4 if bias_shape is None else 5)
    for fast, plain in zip(*results):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


def test_hidden_keys_have_no_influence():
    (query, key, value), _ = inputs(None, requires_grad=False)
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[1, 6:] = True
    bias = attention_bias(None, padding, torch.float64)
    with_padding = attend(query, key, value, bias, 0.0)
    value[1, :, 6:] += 100
    key[1, :, 6:] -= 5
    torch.testing.assert_close(attend(query, key, value, bias, 0.0), with_padding)
    shorter = attend(query[1:2, :, :6], key[1:2, :, :6], value[1:2, :, :6], None, 0.0)
    torch.testing.assert_close(with_padding[1:2, :, :6], shorter)


def test_bias_joins_relative_and_padding():
    relative = torch.randn(1, H, S, S)
    padding = torch.zeros(B, S, dtype=torch.bool)
    assert attention_bias(None, None, torch.float32) is None
    assert attention_bias(relative, None, torch.float32) is relative
    padding[2, 5] = True
    joined = attention_bias(relative, padding, torch.float32)
    assert joined.shape == (B, H, S, S)
    assert torch.isinf(joined[2, :, :, 5]).all()
    assert (joined[0] == relative[0]).all()


def test_attention_dropout_only_while_training():
    torch.manual_seed(0)
    attention = SelfAttention(16, 2, dropout=0.5)
    states = torch.randn(2, 12, 16)
    attention.eval()
    assert torch.equal(attention(states, None), attention(states, None))
    attention.train()
    assert not torch.equal(attention(states, None), attention(states, None))


def test_dropout_keeps_the_mean():
    """Each weight is dropped with the given probability and the rest scaled up."""
    torch.manual_seed(0)
    query = torch.zeros(200, 2, 16, 4)
    value = torch.ones(200, 2, 16, 4)
    for function in (attend, attend_plainly):
        output = function(query, query, value, None, 0.25)
        assert abs(output.mean() - 1) < 0.02
        kept = output * 16 * 0.75
        torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-4)
        assert abs(kept.mean() - 12) < 0.2
