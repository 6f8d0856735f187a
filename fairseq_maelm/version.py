"""The version of the package, kept apart so that setup.py can read it without importing anything."""

__version__ = "0.1.0"
