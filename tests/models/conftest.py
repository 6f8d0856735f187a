"""Fixtures of the tests of models."""

import pytest
from support import FAMILIES


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def family(request):
    """Options of a kind of models."""
    return request.param
