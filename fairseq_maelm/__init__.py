"""MAE-LM for fairseq: text encoders pretrained without [MASK] tokens (Meng et al., 2024).

Importing the package registers the task, the model with its architectures and the criterion, all named ``maelm``, and
the optimiser ``fused_adamw`` with fairseq; ``fairseq-train --user-dir`` does that import. It also tells torch which
types a fairseq checkpoint needs besides tensors, so that checkpoints load with ``weights_only`` kept on, and mends what
is broken in fairseq itself.
"""

import argparse
import importlib.util

import torch

from fairseq_maelm.version import __version__

# The only non-tensor type that fairseq's trainer stores in a checkpoint. With it allowed by name, torch.load keeps
# refusing everything else: a file that carries code is rejected instead of run.
torch.serialization.add_safe_globals([argparse.Namespace])

# Everything else needs fairseq, but exported models are also opened, by fairseq_maelm.hf, where there is none.
if importlib.util.find_spec("fairseq") is not None:
    from fairseq_maelm import optim, tasks  # registration comes last: everything else must be importable first
    from fairseq_maelm.fairseq_fixes import mend_fairseq
    from fairseq_maelm.fairseq_fixes.building import look_before_building
    from fairseq_maelm.models.checkpoint_reader import refuse_foreign
    from fairseq_maelm.models.hub import MaelmHubInterface
    from fairseq_maelm.models.maelm import MaelmModel

    mend_fairseq()
    look_before_building(refuse_foreign)

__all__ = ["MaelmHubInterface", "MaelmModel", "__version__", "optim", "tasks"]
