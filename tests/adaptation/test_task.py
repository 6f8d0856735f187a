"""The task maelm_adaptation recognizes the validation of general text, and stops at the bound."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from data.test_dataset import Blocks
from fairseq.logging import metrics
from support import dictionary_of, model_of, scheme_of

from fairseq_maelm.adaptation import task as adaptation
from fairseq_maelm.adaptation.general_loss_bound import GeneralBlockDataset
from fairseq_maelm.adaptation.task import AdaptationTask, AdaptationTaskConfig
from fairseq_maelm.criterions.maelm import MaelmCriterion, MaelmCriterionConfig
from fairseq_maelm.data.dataset import MaskedBlockDataset, Symbols
from fairseq_maelm.data.masking_variants import EncoderView


def task_of(**changes: Any) -> AdaptationTask:
    defaults = {name: field.default for name, field in AdaptationTaskConfig.__dataclass_fields__.items()}
    return AdaptationTask(SimpleNamespace(**{**defaults, "data": "", "seed": 1, **changes}), dictionary_of(40))


def batch(kind: type[MaskedBlockDataset], first: int) -> dict[str, Any]:
    dataset = kind(Blocks([range(4, 14)] * 8), scheme_of(), Symbols(1, 39), EncoderView(), 0, 1)
    assert dataset.collater([]) == {}, "how fairseq gives ranks equally many batches"
    return dataset.collater([first, first + 1])


@pytest.mark.parametrize("kind", [MaskedBlockDataset, GeneralBlockDataset])
@pytest.mark.parametrize("second_rank_has_a_batch", [True, False])
def test_the_general_set_is_known_by_its_samples(
    kind: type[MaskedBlockDataset], second_rank_has_a_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(adaptation, "stop_training", reasons.append)
    task = task_of(general_data="elsewhere", general_loss_bound=0.1)
    criterion = MaelmCriterion.build_criterion(MaelmCriterionConfig(), task)
    model = model_of()
    with metrics.aggregate("general_at_start", new_root=True):
        metrics.log_scalar("loss", 0.5)
    with metrics.aggregate(new_root=True) as meters:
        logged = [task.valid_step(batch(kind, first), model, criterion)[2] for first in (0, 2)]
        assert logged[0].keys() == logged[1].keys()
        # fairseq sums the metrics of all ranks; a rank without a batch adds nothing.
        ranks = 2 if second_rank_has_a_batch else 1
        sums = {name: sum(torch.as_tensor(each[name]).double() for each in logged[:ranks]) for name in logged[0]}
        task.reduce_metrics([sums], criterion)
    stats = meters.get_smoothed_values()
    assert not [name for name in stats if "general" in name], "nothing of it is shown"
    task.post_validate(model, stats, meters)
    assert len(reasons) == (kind is GeneralBlockDataset)
    assert all("above its bound of 0.600 (0.500 before the first update + 0.1)" in reason for reason in reasons)


def test_without_a_bound_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "stop_training", pytest.fail)
    task_of(general_data="elsewhere").post_validate(model_of(), {"loss": 99.0}, {"_general": 1})
