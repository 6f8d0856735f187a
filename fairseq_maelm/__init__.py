"""MAE-LM for fairseq: text encoders pretrained without [MASK] tokens (Meng et al., 2024).

Importing the package imports neither torch nor fairseq. The task, the model with its architectures and the criterion,
all named ``maelm``, the downstream tasks and the optimizers ``fused_adamw`` and ``muon`` are registered when fairseq
imports the folder as its --user-dir, when a checkpoint is opened, and by ``register()``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fairseq_maelm.registration import register
from fairseq_maelm.version import __version__

if TYPE_CHECKING:
    from fairseq_maelm.models.hub import MaelmHubInterface
    from fairseq_maelm.models.maelm import MaelmModel

__all__ = ["MaelmHubInterface", "MaelmModel", "__version__", "register"]

# Imported on first use, with torch and fairseq.
_LAZY = {"MaelmHubInterface": "fairseq_maelm.models.hub", "MaelmModel": "fairseq_maelm.models.maelm"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    register()
    return getattr(importlib.import_module(_LAZY[name]), name)
