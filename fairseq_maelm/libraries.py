"""Libraries that are needed for some purposes only."""

import importlib
import sys
from typing import Any


def import_transformers() -> Any:
    """Return the package transformers, whatever torchaudio there is.

    Raises:
        ValueError: says how to install it.
    """
    # fairseq brings torchaudio along, pip may choose one that was built for another torch, and transformers imports any
    # that there is. Text needs none: with None in its place Python says that it is not installed.
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            "Hugging Face models need the package transformers: pip install 'fairseq_maelm[hf]'"
        ) from error
    if sys.modules["torchaudio"] is None:
        # Imported before, transformers may have noted that torchaudio is there: version 5 in a cache, 4 in a variable.
        noted = transformers.utils.is_torchaudio_available
        if hasattr(noted, "cache_clear"):
            noted.cache_clear()
        else:
            transformers.utils.import_utils._torchaudio_available = False
    return transformers


def import_pyplot() -> Any:
    """Return matplotlib.pyplot, drawing to files.

    Raises:
        ValueError: says how to install it.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("figures need matplotlib: pip install 'fairseq_maelm[plots]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
