"""The criterion's loss and metrics, worked by hand and independent of the division into batches."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from support import batch_of, model_of, random_sequences

from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.data.masking_variants import VisibleTokens, encoder_input
from fairseq_maelm.modules.linear_cross_entropy import linear_cross_entropy


def sample_of(sequences, masked) -> dict[str, Any]:
    net_input, target = batch_of(sequences, masked)
    tokens = sum(len(sequence) for sequence in sequences)
    return {"net_input": net_input, "target": target, "ntokens": tokens, "nsentences": len(sequences)}


def reduced(*calls: list[dict[str, Any]]) -> dict[str, float]:
    """Return the values that fairseq would log after these calls of ``reduce_metrics``, one for each update."""
    with metrics.aggregate(new_root=True) as aggregator:
        for logging_outputs in calls:
            MaelmCriterion.reduce_metrics(logging_outputs)
        return {name: float(value) for name, value in aggregator.get_smoothed_values().items()}


class FixedLogits(torch.nn.Module):
    """Predicts the distribution 1/2, 1/4, 1/8, 1/8 for each masked token, and returns the loss as our model does."""

    def __init__(self, masked: int) -> None:
        super().__init__()
        self.logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log().repeat(masked, 1)

    def forward(self, target: torch.Tensor, **net_input: Any):
        loss, correct = linear_cross_entropy(self.logits, torch.eye(4), torch.zeros(4), target)
        return loss, {"correct": correct}


# Two sequences of 5 and 3 tokens; 2 and 1 of them are masked, so the encoder sees 3 and 2.
TWO_SEQUENCES = [[0, 3, 3, 3, 2], [0, 3, 2]]
THEIR_MASKS = [[1, 3], [2]]


def worked_by_hand() -> dict[str, Any]:
    sample = sample_of(TWO_SEQUENCES, THEIR_MASKS)
    sample["target"] = torch.tensor([0, 1, 2])
    loss, sample_size, logging_output = MaelmCriterion(None)(FixedLogits(3), sample)
    # Targets with probabilities 1/2, 1/4 and 1/8 cost 1 + 2 + 3 bits.
    assert loss.item() == pytest.approx(6 * math.log(2), rel=1e-6)
    assert sample_size == 3
    return logging_output


def test_metrics_of_two_sequences_worked_by_hand():
    logged = reduced([worked_by_hand()])
    assert logged["loss"] == pytest.approx(2.0, abs=1e-3)
    assert logged["ppl"] == pytest.approx(4.0, abs=1e-2)
    # The most probable token is the first target alone.
    assert logged["accuracy"] == pytest.approx(100 / 3, abs=1e-2)
    assert logged["masked"] == pytest.approx(100 * 3 / 8, abs=1e-2)


def test_padding_counts_the_slots_of_encoder_and_decoder():
    output = worked_by_hand()
    # Tokens are counted with the masked ones.
    assert (output["ntokens"], output["nsentences"], output["sample_size"]) == (8, 2, 3)
    # The encoder has 2 x 3 slots for 3 + 2 tokens, the decoder 2 x 5 for 5 + 3.
    assert (output["slots"], output["filled_slots"]) == (6 + 10, 5 + 8)
    assert reduced([output])["padding"] == pytest.approx(100 * 3 / 16, abs=1e-2)
    equal_lengths = sample_of(random_sequences([6, 6]), [[1, 2], [3, 4]])
    _, _, output = MaelmCriterion(None)(FixedLogits(4), {**equal_lengths, "target": torch.zeros(4, dtype=torch.int64)})
    assert reduced([output])["padding"] == 0.0


def test_padding_does_not_count_states_that_the_decoder_does_not_get():
    """With --masked-input reset the encoder sees the masks, but the decoder does not get their states."""
    tokens, inside = np.array([[0, 3, 3, 2]]), np.ones((1, 4), dtype=bool)
    predicted = np.array([[False, True, False, False]])
    net_input = encoder_input(VisibleTokens(tokens, inside, ~predicted), predicted, np.array([4]), pad=1)
    sample = {"net_input": net_input, "target": torch.tensor([0]), "ntokens": 4, "nsentences": 1}
    _, _, output = MaelmCriterion(None)(FixedLogits(1), sample)
    assert reduced([output])["padding"] == 0.0


@pytest.fixture(scope="module")
def outputs():
    """Return losses and metrics of four sequences in one batch, and in two."""
    model = model_of()
    sequences = random_sequences([12, 12, 9, 9])
    masked = [[1, 5, 6], [0, 3], [2, 8], [4, 5, 6, 7]]
    criterion = MaelmCriterion(None)
    whole = criterion(model, sample_of(sequences, masked))
    halves = [criterion(model, sample_of(sequences[rows], masked[rows])) for rows in (slice(0, 2), slice(2, 4))]
    return whole, halves


def test_batches_of_ranks_and_of_update_freq_add_up_to_one_big_batch(outputs):
    (whole_loss, whole_size, whole), halves = outputs
    assert sum(size for _, size, _ in halves) == whole_size == 11
    assert sum(loss.item() for loss, _, _ in halves) == pytest.approx(whole_loss.item(), rel=1e-6)
    merged = reduced([output for _, _, output in halves])
    at_once = reduced([whole])
    for name in ("loss", "ppl", "accuracy", "masked"):
        assert merged[name] == pytest.approx(at_once[name], rel=1e-6), name
    # Padding is that of the two batches, with 12 + 12 visible slots and so on, not that of the big batch.
    slots = sum(output["slots"] for _, _, output in halves)
    filled = sum(output["filled_slots"] for _, _, output in halves)
    assert slots == (2 * 10 + 2 * 12) + (2 * 7 + 2 * 9)
    assert filled == (9 + 10 + 7 + 5) + 42
    assert merged["padding"] == pytest.approx(100 * (1 - filled / slots), abs=1e-2)


def test_sums_of_ranks_may_be_added_before_they_are_reduced(outputs):
    """fairseq sums the metrics of all ranks in one tensor, because the criterion allows it."""
    assert MaelmCriterion.logging_outputs_can_be_summed()
    _, halves = outputs
    first, second = (output for _, _, output in halves)
    assert first.keys() == second.keys()
    added = {name: torch.as_tensor(first[name], dtype=torch.float64) + second[name] for name in first}
    assert reduced([added]) == pytest.approx(reduced([first, second]), rel=1e-6)


def test_means_over_updates_weigh_tokens_and_not_updates(outputs):
    _, halves = outputs
    updates = reduced(*[[output] for _, _, output in halves])
    at_once = reduced([output for _, _, output in halves])
    for name in ("loss", "accuracy", "masked", "padding"):
        assert updates[name] == pytest.approx(at_once[name], abs=1.1e-2), name


def test_the_gradient_is_that_of_the_sum(outputs):
    """fairseq divides by the sample size that the criterion returns, so the loss must be a sum."""
    (whole_loss, whole_size, whole), _ = outputs
    assert whole_loss.requires_grad
    assert not whole["loss"].requires_grad
    assert whole["loss"].item() == whole_loss.item()
    assert whole["loss"].item() / whole_size / math.log(2) == pytest.approx(reduced([whole])["loss"], abs=1e-3)
