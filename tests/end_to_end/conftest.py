"""Fixtures of the end-to-end tests."""

from end_to_end.toy import toy_data

__all__ = ["toy_data"]
