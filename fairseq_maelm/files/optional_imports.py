"""Import of optional libraries."""

import importlib
import sys
from typing import Any


def import_transformers() -> Any:
    """Return the package transformers, even if the installed torchaudio is broken.

    Raises:
        ValueError: transformers is missing.
    """
    # fairseq requires torchaudio, pip may install one built for another torch, and transformers imports it if it can.
    # Text models need no torchaudio: with None in sys.modules, Python treats it as not installed.
    try:
        importlib.import_module("torchaudio")
    except Exception:  # ImportError if missing; OSError or RuntimeError if built for another torch
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    try:
        import transformers
    except ImportError as error:
        raise ValueError("Hugging Face models need transformers: pip install 'fairseq_maelm[hf]'") from error
    if sys.modules["torchaudio"] is None:
        # A transformers that is already imported remembers torchaudio: version 5 in a cache, version 4 in a variable.
        noted = transformers.utils.is_torchaudio_available
        if hasattr(noted, "cache_clear"):
            noted.cache_clear()
        else:
            transformers.utils.import_utils._torchaudio_available = False
    return transformers


def import_pyplot() -> Any:
    """Return matplotlib.pyplot, set up to draw into files.

    Raises:
        ValueError: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("figures need matplotlib: pip install 'fairseq_maelm[plots]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
