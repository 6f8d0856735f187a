"""MAE-LM for fairseq: text encoders pretrained without [MASK] tokens (Meng et al., 2024).

Importing the package imports neither torch nor fairseq. ``register()`` registers the task, model and criterion named
``maelm``, the downstream tasks, and the optimizers ``fused_adamw`` and ``muon``, and changes fairseq where training
needs it. It also runs when fairseq imports the package as its --user-dir. Opening a checkpoint registers names alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fairseq_maelm.registration import register, register_names

if TYPE_CHECKING:
    from fairseq_maelm.launch.functions import finetune, pretrain
    from fairseq_maelm.models.hub import MaelmHubInterface
    from fairseq_maelm.models.maelm import MaelmModel

__version__ = "0.3.0"

__all__ = ["MaelmHubInterface", "MaelmModel", "__version__", "finetune", "pretrain", "register"]

# Imported on first use: the classes with torch and fairseq.
_CLASSES = {"MaelmHubInterface": "fairseq_maelm.models.hub", "MaelmModel": "fairseq_maelm.models.maelm"}
_FUNCTIONS = ("finetune", "pretrain")


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("fairseq_maelm.launch.functions"), name)
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    register_names()
    return getattr(importlib.import_module(_CLASSES[name]), name)
