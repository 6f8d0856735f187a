"""Import of optional libraries."""

import importlib
from typing import Any


def import_transformers() -> Any:
    """Return the package transformers."""
    # fairseq requires torchaudio, pip may install one built for another torch, and transformers imports it if it can.
    try:
        importlib.import_module("torchaudio")
    except ModuleNotFoundError:
        pass  # text needs none
    except (ImportError, OSError, RuntimeError) as error:
        raise ValueError(
            "the installed torchaudio is for another torch, and transformers fails with it: pip uninstall torchaudio"
        ) from error
    try:
        import transformers
    except ImportError as error:
        raise ValueError("Hugging Face models need transformers: pip install 'fairseq_maelm[hf]'") from error
    return transformers


def import_pyplot() -> Any:
    """Return matplotlib.pyplot, set up to draw into files."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("figures need matplotlib: pip install 'fairseq_maelm[plots]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
