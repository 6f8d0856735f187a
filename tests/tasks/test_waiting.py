"""The log says when a GPU waits, by the clock alone."""

import logging
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.tasks.waiting import HostWatch

MODEL: Any = SimpleNamespace(parameters=lambda: iter([torch.zeros(1)]))


class Machine:
    """A host, and a GPU that computes what the host has started, each with its own time.

    Args:
        start, compute: seconds that the host takes to start a batch's operations, and the GPU to compute them.
        load: seconds until a batch is there.
    """

    def __init__(self, start: float, compute: float, load: float = 0.001) -> None:
        self.start, self.compute, self.load = start, compute, load
        self.now = self.gpu = self.recorded = 0.0

    def train(self, task: EncoderTask, updates: int, batches: int = 1) -> None:
        """Train as fairseq's trainer does."""
        for update in range(updates):
            for _ in range(batches):
                self.now += self.load
                task.train_step({}, MODEL, None, self, update_num=update, ignore_grad=False)
            self.now = max(self.now, self.gpu) + 0.0005  # gradients are looked at
            task.optimizer_step(self, MODEL, update)

    def batch(self, *others: Any, **options: Any) -> tuple[Any, int, dict[str, Any]]:
        self.gpu = max(self.gpu, self.now) + self.compute
        self.now += self.start
        self.gpu = max(self.gpu, self.now)
        return None, 1, {}

    def step(self) -> None:
        self.now += 0.001

    def record(self) -> None:
        self.recorded = self.gpu

    def query(self) -> bool:
        return self.recorded <= self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if "the GPU waits" in record.getMessage()]


def task_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> EncoderTask:
    monkeypatch.setattr(FairseqTask, "train_step", machine.batch)
    task = EncoderTask(None, mock.Mock(), 16)
    task.host_watch = HostWatch(lambda: machine.now, machine)
    return task


SMALL, LARGE = (0.025, 0.010), (0.025, 0.090)


@pytest.mark.parametrize(
    ("times", "batches", "says"),
    [
        (SMALL, 1, "waits for the host: launching the operations of a batch takes 98% of its 25.5 ms"),
        (SMALL, 8, "waits for the host: launching the operations of a batch takes 98%"),
        (LARGE, 1, None),
        (LARGE, 8, None),
        # Batches that come while the GPU computes are in time; it has nothing to compute between two updates.
        ((*LARGE, 0.05), 8, None),
        ((*LARGE, 0.05), 1, "waits for batches: it has none for 36% of the time"),
        ((*LARGE, 0.2), 8, "waits for batches: it has none for 86% of the time"),
    ],
)
def test_says_what_a_gpu_waits_for(
    times: tuple[float, ...], batches: int, says: str | None, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(*times)
    machine.train(task_on(machine, monkeypatch), 300, batches)
    assert len(lines()) == (says is not None)
    assert says is None or says in lines()[0]


def test_says_it_again_only_after_a_change(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(*SMALL)
    task = task_on(machine, monkeypatch)
    machine.train(task, 99)
    assert lines() == []
    machine.train(task, 1)
    for seconds, many in ((0.010, 1), (0.090, 1), (0.010, 2)):
        machine.compute = seconds
        machine.train(task, 100)
        assert len(lines()) == many


def test_rare_pauses_do_not_count(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(*LARGE)
    task = task_on(machine, monkeypatch)
    for _ in range(20):
        machine.train(task, 10)
        machine.now += 60.0  # validation, a checkpoint
    assert lines() == []


def test_nobody_watches_a_cpu(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(*SMALL)
    task = task_on(machine, monkeypatch)
    task.host_watch = None
    machine.train(task, 300)
    assert task.host_watch is None and lines() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("width", "waits"), [(8, True), (4096, False)])
def test_a_gpu_is_waited_for_or_not(width: int, waits: bool, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(20))).cuda()
    states = torch.randn(width, width, device="cuda")
    monkeypatch.setattr(FairseqTask, "train_step", lambda *others, **options: model(states).sum().backward())
    task, optimizer = EncoderTask(None, mock.Mock(), 16), mock.Mock()
    for update in range(200):
        task.train_step({}, model, None, optimizer, update_num=update)
        assert torch.isfinite(model[0].weight.grad).all()
        task.optimizer_step(optimizer, model, update)
    assert bool(lines()) == waits
