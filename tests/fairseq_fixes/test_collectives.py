"""Ranks exchange any object without a GPU, and a checkpoint with its configuration."""

import subprocess
import sys
from pathlib import Path

from end_to_end.toy import ROOT, command_environment

# The program of two processes.
PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
import fairseq_maelm
fairseq_maelm.register()
from fairseq.distributed import utils
from omegaconf import OmegaConf
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method={method!r}, rank=rank, world_size=2)
gathered = utils.all_gather_list([rank, "x" * 40_000], group=utils.get_global_group())
assert [row[0] for row in gathered] == [0, 1] and len(gathered[1][1]) == 40_000
state = {{"cfg": OmegaConf.create({{"a": {{"b": [1, None]}}}}), "model": {{"w": torch.arange(3.0)}}}}
received = utils.broadcast_object(state if rank == 0 else None, 0, utils.get_global_group())
assert received["cfg"].a.b == [1, None] and received["model"]["w"].tolist() == [0, 1, 2]
# Gloo raises an error in a rank whose peer exits before it has looked at what it received.
Path({folder!r}, "done" + str(rank)).touch()
for _ in range(6000):
    if Path({folder!r}, "done" + str(1 - rank)).exists():
        break
    time.sleep(0.01)
print("received", flush=True)
os._exit(0)  # Gloo's threads sometimes abort a process that ends by its destructors.
"""


def test_two_ranks_without_a_gpu(tmp_path: Path) -> None:
    program = PROGRAM.format(root=str(ROOT), method=(tmp_path / "meeting").as_uri(), folder=str(tmp_path))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=command_environment(),
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert all(output.endswith("received\n") for output in outputs)
