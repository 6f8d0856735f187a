"""Random numbers of masking: a hash of (seed, epoch, sequence index, position); there is no generator state.

So a sequence gets the same masks in any batch, worker and rank, and a resumed run need not replay earlier draws.
"""

from functools import lru_cache

import numpy as np

# Constants of the splitmix64 generator (Steele, Lea and Flood, 2014), which passes the usual batteries of tests.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(x: np.ndarray) -> np.ndarray:
    """Apply splitmix64's finalizer to <uint64> values of any shape, in place, and return them.

    It works in place because this is the innermost loop of the data path. Overflow in multiplication is intended.
    """
    shifted = np.empty_like(x)
    for shift, factor in ((np.uint64(30), _MIX_1), (np.uint64(27), _MIX_2)):
        x ^= np.right_shift(x, shift, out=shifted)
        x *= factor
    x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


def random_bits(seed: int, epoch: int, indices: np.ndarray, stream: int, length: int) -> np.ndarray:
    """Return random bits <uint64>[B, length] that depend only on the arguments.

    ``epoch`` counts from 1; ``indices`` <int64>[B] are the dataset indices of the sequences.
    """
    columns = np.arange(1, length + 1, dtype=np.uint64) * GOLDEN_GAMMA
    return mix(mix(row_bits(seed, epoch, indices, stream))[:, None] + columns)


def row_bits(seed: int, epoch: int, indices: np.ndarray, stream: int) -> np.ndarray:
    """Return random bits <uint64>[B], one value for each sequence."""
    return mix(_key(seed, epoch, stream) + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA)


@lru_cache(maxsize=64)
def _key(seed: int, epoch: int, stream: int) -> np.ndarray:
    """Return the hash <uint64>[1] of seed, epoch and stream; cached, because numpy is slow on scalars."""
    key = np.array([seed % (1 << 64)], dtype=np.uint64)
    for part in (epoch, stream):
        key = mix(key * GOLDEN_GAMMA + np.uint64(part) + GOLDEN_GAMMA)
    return key


def uniform(bits: np.ndarray) -> np.ndarray:
    """Convert <uint64> random bits into <float64> numbers in [0, 1)."""
    return (bits >> np.uint64(11)) * (1.0 / (1 << 53))
