"""Processes that fairseq starts for several GPUs know this package, also if their script imports it."""

import subprocess
import sys
from pathlib import Path

from end_to_end.toy import ROOT, USER_DIR, command_environment

# Like the script ``maelm``: each new process imports this file, and so the package.
PROGRAM = """
import os, sys, torch
sys.path.insert(0, {root!r})
import fairseq_maelm

def main(cfg):
    from fairseq import utils
    from fairseq.tasks import TASK_REGISTRY
    utils.import_user_module(cfg.common)
    with open({folder!r} + "/rank" + str(torch.distributed.get_rank()), "w") as stream:
        stream.write(str("maelm" in TASK_REGISTRY))

if __name__ == "__main__":
    fairseq_maelm.register()
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.distributed import utils
    from omegaconf import OmegaConf
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig), enum_to_str=True))
    cfg.model, cfg.common.cpu, cfg.common.user_dir = {{}}, True, {user_dir!r}
    cfg.distributed_training.distributed_world_size = 2
    cfg.distributed_training.distributed_backend = "gloo"
    torch.cuda.device_count = lambda: 2
    utils.call_main(cfg, main)
"""


def test_two_ranks_without_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(root=str(ROOT), folder=str(tmp_path), user_dir=str(USER_DIR)), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=command_environment()
    )
    found = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("rank*"))]
    assert found == ["True", "True"], run.stderr
