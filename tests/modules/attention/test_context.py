"""The dense bias, its gradient, and what it hides."""

import pytest
import torch
from attention_problem import context_of
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_maelm.modules.attention.cpu import collecting
from fairseq_maelm.modules.attention.relative_position import spread, sum_over_distances


def test_spread_and_its_adjoint_by_hand():
    of_distance = torch.tensor([[1.0, 2, 3, 4, 5], [10, 20, 30, 40, 50]])
    index = torch.tensor([[[2, 4], [0, 2]], [[2, 3], [1, 2]]])
    dense = spread(of_distance, index)
    assert dense[0].tolist() == [[[3, 5], [1, 3]], [[30, 50], [10, 30]]]
    assert dense[1].tolist() == [[[3, 4], [2, 3]], [[30, 40], [20, 30]]]
    sums = sum_over_distances(dense, index, 5, torch.float32)
    assert sums.tolist() == [[1, 2, 12, 4, 5], [10, 20, 120, 40, 50]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_is_exact_and_the_same_every_time(dtype):
    """Forty thousand pairs share a distance: half precision, or single in the wrong order, would lose most of them."""
    gradient = torch.ones(4, 1, 100, 100, dtype=dtype)
    index = torch.zeros(4, 100, 100, dtype=torch.int64)
    index[0, 0, 0] = 1
    assert sum_over_distances(gradient, index, 3, torch.float32).tolist() == [[39999, 1, 0]]
    noise = torch.randn(4, 3, 100, 100)
    index = torch.randint(0, 50, (4, 100, 100))
    first, second = (sum_over_distances(noise, index, 50, torch.float32) for _ in range(2))
    assert torch.equal(first, second)


def test_other_devices_never_sum_in_half_precision():
    """A GPU adds in the type of the sum, so --fp16 would lose most pairs; run on meta tensors."""
    added = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.index_add_.default:
                added.append([args[0].dtype, args[3].dtype])
            return function(*args, **kwargs or {})

    gradient = torch.empty(2, 3, 4, 4, dtype=torch.float16, device="meta")
    index = torch.empty(2, 4, 4, dtype=torch.int64, device="meta")
    with Watch():
        sums = sum_over_distances(gradient, index, 7, torch.float16)
    assert sums.shape == (3, 7) and sums.dtype == torch.float16
    assert added == [[torch.float32, torch.float32]]


def test_dense_adds_distances_and_hides_keys():
    table = torch.arange(7.0)[None].repeat(2, 1)
    bias = context_of(table, torch.tensor([[0, 3]]), lengths=torch.tensor([2, 1, 0]))
    key = torch.empty(3, 2, 2, 4)
    infinite = float("inf")
    dense = bias.dense(key)
    assert dense[0, 1].tolist() == [[3, 6], [0, 3]]
    assert dense[1, 0].tolist() == [[3, -infinite], [0, -infinite]]
    # A softmax over -inf alone is not a number; ``blind`` says that the result does not count.
    assert dense[2, 0].tolist() == [[3, 6], [0, 3]]
    assert bias.blind(2).flatten().tolist() == [False, False, True]
    assert bias.dense(key) is dense
    assert bias.dense(key.bfloat16()).dtype == torch.bfloat16
    values = collecting(bias, key.requires_grad_()).values
    assert torch.equal(values, dense)


def test_dense_has_gradients_after_a_pass_without_them():
    bias, key = context_of(torch.zeros(2, 7, requires_grad=True), torch.tensor([[0, 3]])), torch.empty(1, 2, 2, 4)
    with torch.no_grad():
        assert not bias.dense(key).requires_grad
    assert bias.dense(key).requires_grad


def test_nothing_to_add():
    key = torch.empty(3, 2, 2, 4)
    assert context_of().dense(key) is None
    assert context_of().blind(2) is None
    assert context_of(lengths=torch.tensor([2, 1])).blind(2) is None
    assert collecting(context_of(), key).values is None


def test_lengths_hidden_and_causal_join():
    hidden = torch.tensor([[False, True, False, False]])
    dense = context_of(lengths=torch.tensor([3]), hidden=hidden, causal=True).dense(torch.empty(1, 1, 4, 2))
    visible = torch.isfinite(dense)[0, 0]
    assert visible.int().tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]]


def test_distances_need_positions():
    with pytest.raises(ValueError, match="positions"):
        context_of(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="positions"):
        context_of(window=4)
