"""Tests of the downstream tasks."""
