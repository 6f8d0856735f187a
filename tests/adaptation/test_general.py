"""General text beside a domain's: options, the bound on its loss, and the stop that it asks for."""

import math
from types import SimpleNamespace
from typing import Any, Iterator, Optional

import fairseq_cli.train
import pytest
import torch
from fairseq.logging import metrics
from support import batch_of, model_of, random_sequences

from fairseq_maelm.adaptation.general import GeneralLossBound, check_general_options, mean_loss
from fairseq_maelm.fairseq_fixes.stopping import stop_training_for


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Neither meters nor fairseq's question outlive a test."""
    question = fairseq_cli.train.should_stop_early
    yield
    fairseq_cli.train.should_stop_early = question
    metrics.reset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general_ratio": 1.0}, r"--general-ratio must lie in \[0, 1\) and is 1.0"),
        ({"general_loss_bound": 0.0}, "--general-loss-bound must be more than 0 bits and is 0.0"),
        ({"general_data": None}, "need --general-data"),
        ({"general_data": None, "general_ratio": 0.0}, "need --general-data"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], message: str) -> None:
    options = {"general_data": "folder", "general_ratio": 0.25, "general_loss_bound": 0.1}
    check_general_options(SimpleNamespace(**options))
    with pytest.raises(ValueError, match=message):
        check_general_options(SimpleNamespace(**{**options, **changes}))


def samples() -> list[dict[str, Any]]:
    made = []
    for lengths, masked in (([9, 12], [[2, 3], [5]]), ([7], [[1, 4]])):
        net_input, target = batch_of(random_sequences(lengths), masked)
        made.append({"net_input": net_input, "target": target})
    return [*made, {}]


def test_the_loss_is_the_mean_over_predicted_tokens_in_bits() -> None:
    model = model_of().train()
    expected = [
        torch.nn.functional.cross_entropy(model(**each["net_input"])[0], each["target"], reduction="sum")
        for each in samples()[:2]
    ]
    assert mean_loss(model, samples()) == pytest.approx(float(sum(expected)) / 5 / math.log(2), rel=1e-5)
    assert model.training


def test_the_bound_is_measured_once_and_kept_in_checkpoints() -> None:
    model = model_of()
    bound = GeneralLossBound(0.1)
    bound.watch(model, samples)
    start = bound.start
    assert start == pytest.approx(mean_loss(model, samples()))
    bound.watch(model_of(seed=1), samples)
    assert bound.start == start
    state = metrics.state_dict()
    metrics.reset()
    assert bound.start is None
    metrics.load_state_dict(state)
    resumed = GeneralLossBound(0.1)
    resumed.watch(model_of(seed=1), samples)
    assert resumed.start == start, "a resumed run keeps the first one's"

    resumed.check(start + 0.09)
    assert resumed.reason() is None
    resumed.check(start + 0.11)
    assert "above its bound" in str(resumed.reason())
    other = GeneralLossBound(0.1)
    other.check(math.nan)
    assert other.reason() is not None


def config(patience: int = 2) -> Any:
    checkpoint = SimpleNamespace(patience=patience, maximize_best_checkpoint_metric=False, no_save=False)
    return SimpleNamespace(checkpoint=checkpoint)


def test_stopping_joins_fairseqs_own_reasons() -> None:
    why: Optional[str] = None
    stop_training_for(lambda: why)
    cfg = config()
    answers = [fairseq_cli.train.should_stop_early(cfg, loss) for loss in (3.0, 2.0, 2.5, 2.4)]
    assert answers == [False, False, False, True], "patience of two"
    assert not cfg.checkpoint.no_save, "that state is saved as ever"
    why = "the general loss"
    stop_training_for(lambda: why)
    cfg = config(patience=-1)
    assert fairseq_cli.train.should_stop_early(cfg, 1.0) is True
    assert cfg.checkpoint.no_save
