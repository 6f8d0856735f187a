"""MAE-LM for fairseq: text encoders pretrained without [MASK] tokens (Meng et al., 2024).

Importing the package registers the task, the model with its architectures and the criterion, all named ``maelm``, and
the optimiser ``fused_adamw`` with fairseq; ``fairseq-train --user-dir`` does that import. It also tells torch which
types a fairseq checkpoint needs besides tensors, so that checkpoints load with ``weights_only`` kept on, and makes
fairseq's copying of checkpoints safe against being killed.
"""

import argparse

import torch

from fairseq_maelm.version import __version__

# The only non-tensor type that fairseq's trainer stores in a checkpoint. With it allowed by name, torch.load keeps
# refusing everything else: a file that carries code is rejected instead of run.
torch.serialization.add_safe_globals([argparse.Namespace])

from fairseq_maelm import optim, tasks  # noqa: E402  (registration comes last: everything else must be importable first)
from fairseq_maelm.exchange import mend_exchange  # noqa: E402
from fairseq_maelm.models.checkpoint_files import write_whole_checkpoints  # noqa: E402
from fairseq_maelm.models.hub import MaelmHubInterface  # noqa: E402
from fairseq_maelm.models.maelm import MaelmModel  # noqa: E402

write_whole_checkpoints()
mend_exchange()

__all__ = ["MaelmHubInterface", "MaelmModel", "__version__", "optim", "tasks"]
