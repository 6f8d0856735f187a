"""What apex changes where it is installed: fairseq's own optimizer and model, and nothing of this package."""

import os
import subprocess
import sys
from pathlib import Path

# The parts of apex that fairseq looks for.
STAND_IN = {
    "__init__.py": "",
    "multi_tensor_apply.py": "class multi_tensor_applier:\n    available = True\n",
    "normalization.py": "import torch\nclass FusedLayerNorm(torch.nn.LayerNorm):\n    pass\n",
    "optimizers.py": "import torch\nclass FusedAdam(torch.optim.Adam):\n    multi_tensor_adam = None\n",
}
PROGRAM = """
import torch
torch.cuda.is_available = lambda: True  # fairseq takes apex on GPUs alone
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam
from fairseq.modules import LayerNorm
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from support import model_of
from fairseq_maelm.modules import autocast
from fairseq_maelm.optim.adamw import AdamW
from fairseq_maelm.optim.fused_adamw import FusedAdamW, FusedAdamWConfig
model = model_of()
options = {"lr": [1e-3], "adam_betas": "(0.9, 0.98)"}
assert isinstance(FairseqAdam(FairseqAdamConfig(tpu=False, **options), model.parameters()).optimizer, FusedAdam)
assert isinstance(LayerNorm(8), FusedLayerNorm)
assert isinstance(FusedAdamW(FusedAdamWConfig(**options), model.parameters()).optimizer, AdamW)
norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
assert len(norms) > 8 and all(type(norm) is autocast.LayerNorm for norm in norms)
"""


def test_apex_is_fairseq_s_business(tmp_path: Path) -> None:
    (tmp_path / "apex").mkdir()
    for name, text in STAND_IN.items():
        (tmp_path / "apex" / name).write_text(text, encoding="utf-8")
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(map(str, [tmp_path, tests, tests.parent, tests.parent / "docs"]))
    run = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
