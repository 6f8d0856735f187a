"""The scalar bucket functions against boundaries worked out by hand."""

from collections.abc import Callable

import pytest
from maelm_in_one_file import t5_bucket

from .authors_buckets import reference_bucket

BucketFunction = Callable[[int, int, int], int]


def boundaries(function: BucketFunction, num_buckets: int, max_distance: int, longest: int = 511) -> list[int]:
    """Distances to the right at which a new bucket begins."""
    ids = [function(distance, num_buckets, max_distance) for distance in range(longest + 1)]
    return [distance for distance in range(1, longest + 1) if ids[distance] != ids[distance - 1]]


def used_ids(function: BucketFunction, num_buckets: int, max_distance: int) -> list[int]:
    return sorted({function(r, num_buckets, max_distance) for r in range(-511, 512)})


def test_boundaries() -> None:
    # T5's are the first whole numbers not below 8 * 16^(k/8); the reference's bucket 8 + k ends at 8 * 15.875^(k/7).
    assert boundaries(t5_bucket, 32, 128) == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    assert boundaries(reference_bucket, 32, 128) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 18, 27, 39, 58, 86]


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 128), (128, 256)])
def test_used_ids(num_buckets: int, max_distance: int) -> None:
    """Each function leaves one row of the table untouched: T5 the middle one, the reference the last."""
    middle = num_buckets // 2
    assert used_ids(t5_bucket, num_buckets, max_distance) == [i for i in range(num_buckets) if i != middle]
    assert used_ids(reference_bucket, num_buckets, max_distance) == list(range(num_buckets - 1))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 128), (128, 256), (4, 3), (8, 20), (12, 40)])
def test_order_and_sides(num_buckets: int, max_distance: int) -> None:
    half = num_buckets // 2
    for distance in range(1, 512):
        left, right = (t5_bucket(r, num_buckets, max_distance) for r in (-distance, distance))
        assert right == left + half
        assert 0 <= left - t5_bucket(1 - distance, num_buckets, max_distance) <= 1
        left, right = (reference_bucket(r, num_buckets, max_distance) for r in (-distance, distance))
        assert left + right == 2 * (half - 1)
        assert 0 <= right - reference_bucket(distance - 1, num_buckets, max_distance) <= 1


def test_smallest_table() -> None:
    """4 buckets: T5 tells near from far on each side, the reference has room for the sign only."""
    assert [t5_bucket(r, 4, 3) for r in (-5, -1, 0, 1, 5)] == [1, 1, 0, 3, 3]
    assert [reference_bucket(r, 4, 3) for r in (-5, -1, 0, 1, 5)] == [0, 0, 1, 2, 2]
