"""General text in domain adaptation: options, its loss before the first update, and the bound on it."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fairseq.logging import metrics
from tasks.test_maelm import UnequalBlocks, task_of

from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.launch import progress
from fairseq_maelm.tasks import general_text


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Reset fairseq's meters after each test."""
    yield
    metrics.reset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general_ratio": 1.0}, "--general-ratio must be at least 0 and below 1, not 1.0"),
        ({"general_loss_bound": 0.0}, "--general-loss-bound must be above 0, not 0.0"),
        ({"general_data": None}, "need --general-data"),
        ({"general_data": None, "general_ratio": 0.0}, "need --general-data"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], message: str) -> None:
    options = {"general_data": "folder", "general_ratio": 0.25, "general_loss_bound": 0.1}
    task_of(**options)
    with pytest.raises(ValueError, match=message):
        task_of(**{**options, **changes})


class Trainer:
    """fairseq's trainer, for a validation of two batches with 3 and 1 predicted tokens and losses 2 and 6."""

    dataset = SimpleNamespace(max_valid_steps=2, disable_validation=False, valid_subset="valid,general")
    cfg = SimpleNamespace(
        dataset=dataset, checkpoint=SimpleNamespace(save_dir="nowhere", finetune_from_model="encoder.pt")
    )

    def __init__(self, updates: int = 0) -> None:
        self.updates = updates

    def get_num_updates(self) -> int:
        return self.updates

    def get_valid_iterator(self, subset: str) -> Any:
        return SimpleNamespace(next_epoch_itr=lambda **options: [(2.0, 3), (6.0, 1)])

    def valid_step(self, sample: tuple[float, int]) -> None:
        metrics.log_scalar("loss", sample[0], sample[1])


@pytest.mark.parametrize(
    ("changes", "logged"),
    [
        ({}, ["valid", "general"]),
        ({"updates": 1}, []),
        ({"disable_validation": True}, []),
        ({"finetune_from_model": None}, []),
    ],
)
def test_the_losses_before_the_first_update_are_logged_where_a_gain_will_be_seen(
    changes: dict[str, Any], logged: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name in changes.keys() - {"updates"}:
        section = Trainer.cfg.dataset if hasattr(Trainer.cfg.dataset, name) else Trainer.cfg.checkpoint
        monkeypatch.setattr(section, name, changes[name])
    monkeypatch.setattr(general_text, "running_trainer", lambda: Trainer(changes.get("updates", 0)))
    task_of().begin_epoch(1, None)
    lines = [f"{subset} loss before the first update: 3.000 bits per masked token" for subset in logged]
    assert caplog.messages == lines


def test_the_loss_before_the_first_update_is_kept_in_checkpoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(general_text, "running_trainer", Trainer)
    task = task_of(general_data="elsewhere", general_loss_bound=0.1)
    with pytest.raises(ValueError, match="needs the validation set 'general': give --valid-subset valid,general"):
        task.begin_epoch(1, None)
    task.datasets["general"] = object()
    trainer: Any = Trainer()
    assert general_text.excess(100.0, 0.1, trainer) is None, "nothing to compare with"
    task.begin_epoch(1, None)
    assert general_text.start() == 3.0
    state = metrics.state_dict()
    metrics.reset()
    assert general_text.start() is None
    metrics.load_state_dict(state)
    monkeypatch.setattr(Trainer, "get_valid_iterator", pytest.fail)
    monkeypatch.setattr(general_text, "running_trainer", lambda: Trainer(updates=7))
    task.begin_epoch(2, None)
    assert general_text.start() == 3.0, "a resumed run keeps the first one's"
    assert general_text.excess(3.5, 0.5, trainer) is None, "the bound itself is allowed"
    assert "above its bound of 3.100 (3.000 before" in str(general_text.excess(3.11, 0.1, trainer))
    assert general_text.excess(math.nan, 0.1, trainer) is not None
    assert str(general_text.excess(4.0, 0.1, trainer)).endswith(
        "not saved; nor was an earlier one: lower --lr, raise --general-ratio or the bound, or validate more often"
    )
    (tmp_path / "checkpoint_last.pt").touch()
    monkeypatch.setattr(Trainer.cfg.checkpoint, "save_dir", str(tmp_path))
    assert str(general_text.excess(4.0, 0.1, trainer)).endswith("not saved; use the last checkpoint")
    monkeypatch.setattr(Trainer.cfg.dataset, "max_valid_steps", None)
    with pytest.raises(ValueError, match="a loss on all batches with .* measured with --max-valid-steps 2: resume"):
        task.begin_epoch(3, None)


@pytest.mark.parametrize(("split", "bound", "stops"), [("general", 0.1, 1), ("valid", 0.1, 0), ("general", None, 0)])
def test_the_set_that_was_read_last_is_the_validated_one(
    split: str, bound: float | None, stops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(general_text, "stop_training", reasons.append)
    monkeypatch.setattr(progress._Run, "trainer", lambda: None)
    monkeypatch.setattr(general_text, "running_trainer", Trainer)
    task = task_of(general_data="elsewhere", general_loss_bound=bound)
    task.datasets = {"valid": dataset_of(task), "general": dataset_of(task)}
    with metrics.aggregate("general_at_start", new_root=True):
        metrics.log_scalar("loss", 0.5)
    for name in ("valid", "general", split):
        task.get_batch_iterator(task.dataset(name), max_sentences=8)
    task.post_validate(None, {"loss": 99.0}, None)
    assert len(reasons) == stops


def dataset_of(task: Any) -> Any:
    return MaskedBlockDataset(UnequalBlocks(), task.scheme, Symbols(1, task.mask_index), task.encoder_view, 0, 1)
