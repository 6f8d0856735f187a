"""Relative position buckets, one scalar at a time and in exact integer arithmetic.

Both functions place a distance on a logarithmic scale. Written with logarithms, the result at a boundary hangs on the
last bit of the rounding; here the boundary is decided by comparing whole numbers, so these functions cannot be wrong
by a rounding error and may serve as the judge of any faster floating point version.

With r = (distance / exact), g = (limit / exact) and n steps from `exact` to `limit`,

    log(r) / log(g) * n >= k   <=>   r^n >= g^k   <=>   distance^n * exact^k >= limit^k * exact^n.
"""

from functools import cache


def _check(num_buckets: int, max_distance: int) -> None:
    if num_buckets < 4 or num_buckets % 2 != 0:
        raise ValueError(f"num_buckets must be even and at least 4, not {num_buckets}")
    if max_distance <= num_buckets // 4 + 1:
        raise ValueError(
            f"max_distance {max_distance} leaves no logarithmic buckets; use more than {num_buckets // 4 + 1}"
        )


@cache
def t5_bucket(relative_position: int, num_buckets: int, max_distance: int) -> int:
    """Bidirectional bucket of T5 (Raffel et al. 2020, section 2.1).

    Args:
        relative_position: key position - query position, in tokens, any sign.
        num_buckets: even, >= 4; the upper half is for keys after the query.
        max_distance: distance in tokens from which on everything shares the last bucket.

    Returns:
        bucket id in 0..num_buckets-1. The id num_buckets // 2 is never returned: it would be "0 tokens after".
    """
    _check(num_buckets, max_distance)
    half = num_buckets // 2
    exact = half // 2
    steps = half - exact
    distance = abs(relative_position)
    if distance < exact:
        bucket = distance
    else:
        bucket = exact  # rounds down: the largest k whose boundary the distance has reached
        while bucket < half - 1:
            k = bucket + 1 - exact
            if distance**steps * exact**k < max_distance**k * exact**steps:
                break
            bucket += 1
    return bucket + half if relative_position > 0 else bucket


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
    _check(num_buckets, max_distance)
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
