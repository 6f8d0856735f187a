"""Fixtures of the tests of examples."""

from end_to_end.toy import toy_data

__all__ = ["toy_data"]
