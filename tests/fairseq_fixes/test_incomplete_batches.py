"""Batches contain every example, even those that fairseq's own function drops; a rank may have no batch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.small import NARROW
from end_to_end.toy import TINY_TRAINING
from fairseq import tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from hypothesis import given
from hypothesis import strategies as st

import fairseq_maelm
from fairseq_maelm.launch.options import parse_training

KEPT = Path(__file__).resolve().parents[1] / "end_to_end" / "kept" / "data"


@given(
    st.lists(st.integers(1, 40), max_size=100),
    st.one_of(st.none(), st.integers(40, 400)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.sampled_from([1, 2, 3, 8, 64]),
)
def test_batches_hold_every_index_once_in_order(
    sizes: list[int], max_tokens: int | None, max_sentences: int | None, multiple: int
) -> None:
    indices = np.random.default_rng(len(sizes)).permutation(len(sizes))
    for given_as in (indices, indices.tolist(), iter(indices)):
        batches = data_utils.batch_by_size(
            given_as, sizes.__getitem__, np.array(sizes)[indices], max_tokens, max_sentences, multiple
        )
        assert [int(index) for batch in batches for index in batch] == indices.tolist()
        for batch in batches:
            assert 0 < len(batch) <= (max_sentences or len(sizes))
            assert max(sizes[index] for index in batch) * len(batch) <= (max_tokens or np.inf)


class Counting:
    """A criterion that counts examples, and fails for outputs without metrics."""

    def __call__(self, model: Any, sample: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, len(sample["id"]), {"nsentences": len(sample["id"]), "ntokens": 1}

    @staticmethod
    def reduce_metrics(outputs: list[dict[str, Any]]) -> None:
        metrics.log_scalar("examples", sum(output["nsentences"] for output in outputs))


def test_a_rank_without_a_batch_adds_nothing() -> None:
    fairseq_maelm.register()
    task = FairseqTask(None)
    outputs = [task.valid_step(sample, torch.nn.Identity(), Counting())[2] for sample in ({"id": [1, 2]}, {})]
    assert outputs[1] == {}
    with metrics.aggregate(new_root=True) as meters:
        task.reduce_metrics(outputs, Counting())
    assert meters.get_smoothed_values()["examples"] == 2


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
