"""Relative position bias: buckets as in the plain re-implementation, gathered at original positions."""

import maelm_in_one_file
import pytest
import torch
from plain import authors_buckets

from fairseq_maelm.modules.attention.context import AttentionContext, Tokens
from fairseq_maelm.modules.attention.relative_position import BUCKET_FUNCTIONS, RelativePositionBias

SETTINGS = [(32, 128), (64, 128), (128, 256), (8, 20), (4, 3)]


@pytest.mark.parametrize(("num_buckets", "max_distance"), SETTINGS)
@pytest.mark.parametrize("name", ["t5", "reference"])
def test_equals_exact_integer_buckets(name, num_buckets, max_distance):
    plain = {"t5": maelm_in_one_file.t5_bucket, "reference": authors_buckets.reference_bucket}[name]
    for distance in range(-600, 601):
        ours = BUCKET_FUNCTIONS[name](distance, num_buckets, max_distance)
        assert ours == plain(distance, num_buckets, max_distance), distance
        assert 0 <= ours < num_buckets


@pytest.mark.parametrize("name", ["t5", "reference"])
def test_bias_by_hand(name):
    """bias[h, query, key] = table[bucket(position of key - position of query), h], gaps included."""
    torch.manual_seed(0)
    bias = RelativePositionBias(name, 8, 20, num_heads=3, max_positions=40)
    positions = torch.tensor([[0, 2, 3, 39], [5, 1, 30, 0]])
    result = AttentionContext(Tokens(positions), relative_bias=bias()).dense(torch.empty(2, 3, 4, 5))
    assert result.shape == (2, 3, 4, 4)
    for row in range(2):
        for query in range(4):
            for key in range(4):
                distance = int(positions[row, key] - positions[row, query])
                expected = bias.weight[BUCKET_FUNCTIONS[name](distance, 8, 20)]
                torch.testing.assert_close(result[row, :, query, key], expected)


def test_buckets_survive_half_precision():
    bias = RelativePositionBias("t5", 32, 128, num_heads=2, max_positions=512)
    before = bias.bucket_of_distance.clone()
    assert torch.equal(bias.half().bucket_of_distance, before)
