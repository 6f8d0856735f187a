"""Load checkpoints as plain data, so that a file from elsewhere cannot run code.

Reason: fairseq's releases leave torch its default, ``weights_only=True``. fairseq's main branch passes
``weights_only=False``, with which a checkpoint can run any command.
Test: tests/models/test_checkpoint_safety.py.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from fairseq import checkpoint_utils

# Overrides what callers of torch.load pass (torch's notes on serialization).
_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

_load_otherwise = checkpoint_utils.load_checkpoint_to_cpu


@contextlib.contextmanager
def _only_plain_data() -> Iterator[None]:
    before = os.environ.get(_ONLY_WEIGHTS)
    os.environ[_ONLY_WEIGHTS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_WEIGHTS]
        else:
            os.environ[_ONLY_WEIGHTS] = before


def load_plain_data(*args: Any, **options: Any) -> Any:
    """Load a checkpoint like fairseq; raise an UnpicklingError if it holds anything but plain data."""
    with _only_plain_data():
        return _load_otherwise(*args, **options)


def load_as_plain_data() -> None:
    """Make fairseq use the function of this module."""
    checkpoint_utils.load_checkpoint_to_cpu = load_plain_data
