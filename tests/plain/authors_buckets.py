"""The bucket function of the authors' implementation, one scalar at a time and in exact integer arithmetic.

As in ``t5_bucket`` of the method in one file, whole numbers decide the boundaries of the logarithmic scale, so that no
rounding error can move them.
"""

from functools import cache


@cache
def reference_bucket(relative_position: int, num_buckets: int, max_distance: int) -> int:
    """Bucket function of the implementation that the paper's authors published; it is not T5's.

    It rounds up, measures the scale by max_distance - 1, ends one bucket earlier and is symmetric about the middle.

    Args:
        relative_position: key position - query position, in tokens, any sign.
        num_buckets: even, >= 4.
        max_distance: one more than the distance at which the logarithmic scale ends.

    Returns:
        bucket id in 0..num_buckets-2; distance 0 has the id num_buckets // 2 - 1.
    """
    half = num_buckets // 2
    exact = half // 2
    last = half - 1
    steps = last - exact
    limit = max_distance - 1
    distance = abs(relative_position)
    if distance < exact:
        bucket = distance
    else:
        bucket = exact  # rounds up: the smallest k whose boundary is not below the distance
        while bucket < last:
            k = bucket - exact
            if distance**steps * exact**k <= limit**k * exact**steps:
                break
            bucket += 1
    sign = 1 if relative_position > 0 else -1
    return sign * bucket + last
