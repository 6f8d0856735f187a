"""A rank may have no batch; a validation cut short has a fixed and representative sample, and leaves nothing behind."""

import copy
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.small import NARROW
from end_to_end.toy import TINY_TRAINING
from fairseq import tasks
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

import fairseq_maelm
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.fairseq_fixes import batches
from fairseq_maelm.fairseq_fixes.batches import TaskOnUnevenRanks
from fairseq_maelm.launch.command_line import parse_training

fairseq_maelm.register()
KEPT = Path(__file__).resolve().parents[1] / "end_to_end" / "kept" / "data"


class Counting:
    """A criterion that counts examples, and fails for outputs without metrics."""

    def __call__(self, model: Any, sample: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, len(sample["id"]), {"nsentences": len(sample["id"]), "ntokens": 1}

    @staticmethod
    def reduce_metrics(outputs: list[dict[str, Any]]) -> None:
        metrics.log_scalar("examples", sum(output["nsentences"] for output in outputs))


def test_a_rank_without_a_batch_adds_nothing() -> None:
    task = TaskOnUnevenRanks(None)
    outputs = [task.valid_step(sample, torch.nn.Identity(), Counting())[2] for sample in ({"id": [1, 2]}, {})]
    assert outputs[1] == {}
    with metrics.aggregate(new_root=True) as meters:
        task.reduce_metrics(outputs, Counting())
    assert meters.get_smoothed_values()["examples"] == 2


def test_other_tasks_train_as_in_fairseq(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(batches, "_train_step", lambda trainer, samples, raise_oom: seen.append(samples))
    for task in (FairseqTask(None), TaskOnUnevenRanks(None)):
        for is_fsdp in (False, True):
            Trainer.train_step(SimpleNamespace(task=task, is_fsdp=is_fsdp), ["a batch", {}])
    assert seen == [["a batch", {}], ["a batch", {}], ["a batch"], [{}, "a batch"]]


def test_dummy_batches_of_sharded_models_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of a real trainer with its batch is that with two missing batches as well, wherever they are."""
    monkeypatch.setattr(Trainer, "is_fsdp", property(lambda self: self.sharded))
    found = []
    for missing in ([], [0], [1, 2]):
        trainer = trainer_of_tiny_model()
        samples: list[Any] = [batch_of(trainer, range(8, 16))]
        for place in missing:
            samples.insert(place, {})
        trainer.reset_dummy_batch(batch_of(trainer, range(5)))
        trainer.sharded = True
        output = trainer.train_step(samples)
        weights = [weight.detach().clone() for weight in trainer.get_model().parameters()]
        found.append((output["sample_size"], output["loss"], output["accuracy"], weights))
    for size, *logged, weights in found[1:]:
        assert size == found[0][0] > 0 and logged == pytest.approx(found[0][1:3], rel=1e-4)
        assert all(torch.equal(weight, other) for weight, other in zip(weights, found[0][3]))


def trainer_of_tiny_model() -> Any:
    words = [str(KEPT), *TINY_TRAINING, *NARROW, "--dropout", 0, "--attention-dropout", 0]
    config = convert_namespace_to_omegaconf(parse_training([str(word) for word in words]))
    torch.manual_seed(1)
    task = tasks.setup_task(config.task)
    Trainer.sharded = False
    trainer = Trainer(config, task, task.build_model(config.model), task.build_criterion(config.criterion))
    trainer.lr_step(0)
    return trainer


def batch_of(trainer: Any, indices: Iterable[int]) -> dict[str, Any]:
    trainer.task.load_dataset("valid")
    return trainer.task.dataset("valid").collater(list(indices))


# Validation


class Lengths(BatchDataset):
    """Examples of 5 to 124 tokens, from the shortest to the longest as validation orders them."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0).integers(5, 125, 900), "shortest")

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        return {"sizes": torch.from_numpy(self.sizes[indices])}


class Stock(FairseqDataset):
    """The same examples with fairseq's defaults: it keeps the iterator for the next validation."""

    sizes = Lengths().sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> int:
        return int(index)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        return np.argsort(self.sizes, kind="stable")

    def collater(self, samples: list[int]) -> dict[str, Any]:
        indices = np.array(samples, dtype=np.int64)
        return {"id": torch.from_numpy(indices), "sizes": torch.from_numpy(self.sizes[indices])}


def trainer_of(dataset: FairseqDataset, steps: int | None, ranks: int = 1, rank: int = 0, workers: int = 0) -> Any:
    """What fairseq's trainer reads to make the batches of a validation."""
    task = FairseqTask(None)
    task.datasets["valid"], task.max_positions = dataset, lambda: 512
    options = {"max_tokens_valid": 600, "batch_size_valid": None, "skip_invalid_size_inputs_valid_test": False}
    options |= {"required_batch_size_multiple": 8, "num_workers": workers, "data_buffer_size": 10}
    cfg = SimpleNamespace(dataset=SimpleNamespace(max_valid_steps=steps, **options), common=SimpleNamespace(seed=1))
    ours = {"task": task, "cfg": cfg, "data_parallel_world_size": ranks, "data_parallel_rank": rank}
    return SimpleNamespace(model=SimpleNamespace(max_positions=lambda: 512), reset_dummy_batch=id, **ours)


def validate(trainer: Any) -> list[dict[str, Any]]:
    """Read batches as the loop of ``fairseq_cli.train.validate`` does."""
    measured = []
    for number, batch in enumerate(Trainer.get_valid_iterator(trainer, "valid").next_epoch_itr(shuffle=False)):
        if trainer.cfg.dataset.max_valid_steps is not None and number > trainer.cfg.dataset.max_valid_steps:
            break
        measured.append(batch)
    return measured


@pytest.mark.parametrize("kind", [Lengths, Stock])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_sample_is_fixed_and_has_all_lengths(kind: Callable[[], FairseqDataset], ranks: int) -> None:
    dataset = kind()
    trainers = [trainer_of(dataset, 12, ranks, rank) for rank in range(ranks)]
    first, second = ([validate(trainer) for trainer in trainers] for _ in range(2))
    assert [len(batches) for batches in first] == [12] * ranks
    places = [index for batches in first for batch in batches for index in batch["id"].tolist()]
    assert places == [index for batches in second for batch in batches for index in batch["id"].tolist()]
    assert len(set(places)) == len(places) < len(dataset)
    sizes = torch.cat([batch["sizes"] for batches in first for batch in batches]).double()
    assert sizes.mean() == pytest.approx(dataset.sizes.mean(), rel=0.08)
    # As many batches as there are, or none asked for: all of them.
    for steps in (None, 10_000):
        whole = [validate(trainer_of(dataset, steps, ranks, rank)) for rank in range(ranks)]
        measured = sum(len(batch["id"]) for batches in whole for batch in batches if batch)
        # From other datasets than ours, fairseq drops the end of the last batch.
        assert measured == len(dataset) - (2 if kind is Stock else 0)


def test_nothing_stays_behind() -> None:
    """Each validation of stock fairseq leaves a thread and its two workers."""
    trainer = trainer_of(Lengths(), 3, workers=2)
    before = set(multiprocessing.active_children()), set(threading.enumerate())
    for _ in range(2):
        assert len(validate(trainer)) == 3
        deadline = time.monotonic() + 20
        while (set(multiprocessing.active_children()), set(threading.enumerate())) != before:
            assert time.monotonic() < deadline, (multiprocessing.active_children(), threading.enumerate())
            time.sleep(0.05)


def test_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="--max-valid-steps must be at least 1, not 0"):
        validate(trainer_of(Lengths(), 0))


def test_other_iterators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(EpochBatchIterator):
        pass

    trainer = trainer_of(Lengths(), 1)
    made = trainer.task.get_batch_iterator(trainer.task.dataset("valid"), max_tokens=600)
    made.__class__ = Other
    monkeypatch.setattr(trainer.task, "get_batch_iterator", lambda **unused: copy.copy(made))
    assert Trainer.get_valid_iterator(trainer, "valid").frozen_batches is made.frozen_batches
