"""The SLURM job: what it starts on every node, and that fairseq finds its place there. SLURM itself is played."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from recipes.dry_runs import PRETRAINING, configuration_of_command

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Environment of a job of 2 nodes with 8 GPUs each, in which srun just runs what it is given."""
    commands = {
        "srun": 'while [[ $1 == --* ]]; do shift 2; done; exec "$@"',
        "scontrol": '[[ "$1 $2" == "show hostnames" ]] || exit 1; printf "node17\\nnode18\\n"',
    }
    for name, body in commands.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "node[17-18]",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_PER_TASK": "32",
    }


def submit(slurm: dict[str, str], *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run the job's script as SLURM does: a copy of it, in another folder."""
    copy = Path(slurm["PATH"].split(os.pathsep)[0]).parent / "slurm_script"
    copy.write_text((PRETRAINING / "pretrain.slurm").read_text(encoding="utf-8"))
    words = ["bash", str(copy), *map(str, arguments)]
    return subprocess.run(words, env=slurm, capture_output=True, text=True)


def test_job_starts_the_recipe_and_fairseq_finds_its_place(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("piece 1\n")
    words = [tmp_path, "--output", tmp_path / "run", "--recipe", "base", "--dry-run", "--", "--log-interval", 7]
    result = submit(slurm, *words)
    assert result.returncode == 0, result.stderr
    configuration = configuration_of_command(shlex.split(result.stdout))
    assert configuration.optimization.update_freq == [1]
    assert configuration.common.log_interval == 7
    distributed = configuration.distributed_training
    second_node = {**slurm, "SLURM_NODEID": "1"}
    with mock.patch.dict(os.environ, second_node), mock.patch.object(torch.cuda, "device_count", return_value=8):
        distributed_utils.infer_init_method(distributed)
    assert distributed.distributed_init_method == "tcp://node17:23456"
    assert distributed.distributed_world_size == 16
    # The first of the eight processes that fairseq then starts on this node.
    assert (distributed.distributed_rank, distributed.distributed_num_procs) == (8, 8)
    assert not distributed.distributed_no_spawn
