"""Tests of question answering."""
