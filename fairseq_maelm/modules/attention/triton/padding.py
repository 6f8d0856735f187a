"""Lengths in whole blocks of the kernels; importing this module does not import triton."""

# Rows and columns of all blocks divide this number.
WIDEST_BLOCK = 128


def padded_length(length: int) -> int:
    """Return S', the length rounded up to whole blocks of whatever size."""
    return (length + WIDEST_BLOCK - 1) // WIDEST_BLOCK * WIDEST_BLOCK
