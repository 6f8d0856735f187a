"""Fixtures of the tests of domain adaptation."""

from collections.abc import Iterator

import pytest
from fairseq.logging import metrics


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Reset fairseq's meters after each test."""
    yield
    metrics.reset()
