"""Ranks exchange any object without a GPU and know this package; workers leave inherited garbage alone."""

import gc
import os
from pathlib import Path

import pytest
from end_to_end.small import start
from end_to_end.toy import ROOT, USER_DIR, run
from torch.utils.data import DataLoader

import fairseq_maelm

fairseq_maelm.register()

# The program of two processes.
EXCHANGE = """
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


def test_two_ranks_exchange_objects_without_a_gpu(tmp_path: Path) -> None:
    program = EXCHANGE.format(root=str(ROOT), method=(tmp_path / "meeting").as_uri(), folder=str(tmp_path))
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    ranks = [start(["python", "-c", program, rank], log) for rank, log in enumerate(logs)]
    statuses, outputs = [rank.wait(300) for rank in ranks], [log.read_text(encoding="utf-8") for log in logs]
    assert statuses == [0, 0], "\n".join(outputs)
    assert all(output.endswith("received\n") for output in outputs)


# Like the script ``maelm``: each new process imports this file, and so the package.
SCRIPT = """
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


def test_ranks_that_fairseq_starts_know_the_package(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(root=str(ROOT), folder=str(tmp_path), user_dir=str(USER_DIR)), encoding="utf-8")
    said = run(["python", script])
    found = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("rank*"))]
    assert found == ["True", "True"], said


class Part:
    """In a cycle; writes down the process that collects it."""

    def __init__(self, log):
        self.log, self.itself = log, self

    def __del__(self):
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")


class Collecting:
    """Examples whose making collects garbage: first a cycle of the worker's own, if asked."""

    def __init__(self, log=None):
        self.log = log

    def __len__(self):
        return 1

    def __getitem__(self, index):
        if self.log:
            Part(self.log)
        gc.collect()
        return os.getpid()


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_worker_leaves_inherited_garbage(tmp_path, uncollected):
    log = tmp_path / "log"
    Part(log)
    (worker,) = (int(batch) for batch in DataLoader(Collecting(), num_workers=1))
    assert worker != os.getpid()
    assert not log.exists()
    gc.collect()
    assert log.read_text().split() == [str(os.getpid())]


def test_a_worker_collects_its_own_garbage(tmp_path, uncollected):
    log = tmp_path / "log"
    (worker,) = (int(batch) for batch in DataLoader(Collecting(log), num_workers=1))
    assert log.read_text().split() == [str(worker)]
