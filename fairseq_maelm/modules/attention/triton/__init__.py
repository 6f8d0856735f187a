"""Attention by Triton kernels that look up the relative bias themselves; importing it does not import triton."""

# A multiple of the number of rows and columns of every block.
WIDEST_BLOCK = 128


def padded_length(length: int) -> int:
    """Return S', the length rounded up to a multiple of all block sizes."""
    return (length + WIDEST_BLOCK - 1) // WIDEST_BLOCK * WIDEST_BLOCK
