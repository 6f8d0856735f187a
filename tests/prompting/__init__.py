"""Tests of prompting."""
