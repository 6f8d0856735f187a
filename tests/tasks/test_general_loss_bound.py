"""General text in domain adaptation: options, and the bound on its loss."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from support import batch_of, model_of, random_sequences

from fairseq_maelm.adaptation.general_loss_bound import GeneralLossBound, check_general_options, mean_loss


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general_ratio": 1.0}, r"--general-ratio must be in \[0, 1\), not 1.0"),
        ({"general_loss_bound": 0.0}, "--general-loss-bound must be more than 0 bits, not 0.0"),
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


def test_the_loss_at_the_start_is_kept_in_checkpoints() -> None:
    model = model_of()
    bound = GeneralLossBound(0.1)
    assert bound.start is None and bound.excess(100.0) is None
    bound.measure_start(model, samples())
    start = bound.start
    assert start == pytest.approx(mean_loss(model, samples()))
    state = metrics.state_dict()
    metrics.reset()
    assert bound.start is None
    metrics.load_state_dict(state)
    resumed = GeneralLossBound(0.1)
    assert resumed.start == start, "a resumed run keeps the first one's"

    assert resumed.excess(start + 0.09) is None
    assert "above its bound" in str(resumed.excess(start + 0.11))
    assert resumed.excess(math.nan) is not None
