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


@pytest.mark.parametrize(
    ("relative_position", "bucket"),
    # 8 * 16^(k/8) = 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5, 128: the first whole numbers not below them open a bucket.
    [(0, 0), (-1, 1), (1, 17), (-7, 7), (7, 23), (-8, 8), (8, 24), (-11, 8), (11, 24), (-12, 9), (12, 25)]
    + [(15, 25), (16, 26), (-15, 9), (-16, 10), (22, 26), (23, 27), (31, 27), (32, 28), (45, 28), (46, 29)]
    + [(63, 29), (64, 30), (90, 30), (91, 31), (-90, 14), (-91, 15), (128, 31), (511, 31), (-511, 15), (10**6, 31)],
)
def test_t5_by_hand(relative_position: int, bucket: int) -> None:
    assert t5_bucket(relative_position, 32, 128) == bucket


@pytest.mark.parametrize(
    ("relative_position", "bucket"),
    # 8 * 15.875^(k/7) = 8, 11.9, 17.6, 26.1, 38.8, 57.6, 85.5, 127: bucket 8 + k ends there.
    [(0, 15), (-1, 14), (1, 16), (7, 22), (-7, 8), (8, 23), (-8, 7), (9, 24), (11, 24), (12, 25), (17, 25), (18, 26)]
    + [(26, 26), (27, 27), (38, 27), (39, 28), (57, 28), (58, 29), (85, 29), (86, 30), (-85, 1), (-86, 0)]
    + [(127, 30), (128, 30), (511, 30), (-511, 0), (-(10**6), 0)],
)
def test_reference_by_hand(relative_position: int, bucket: int) -> None:
    assert reference_bucket(relative_position, 32, 128) == bucket


def test_boundaries() -> None:
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
