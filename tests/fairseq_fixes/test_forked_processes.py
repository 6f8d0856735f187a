"""A worker of the data loader does not collect what its parent left behind, such as tensors of a GPU."""

import gc
import os

import pytest
from torch.utils.data import DataLoader


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
