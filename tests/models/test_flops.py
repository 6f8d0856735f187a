"""The FLOPs model: published-size metrics worked out elsewhere, and counts of what real models really multiply."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from roberta import stock_roberta
from support import batch_of, dictionary_of, model_config, random_sequences
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.models.flops import (
    BatchShape,
    ModelShape,
    StackShape,
    muon_flops,
    training_flops,
)
from fairseq_maelm.models.maelm import MaelmModel


def test_muon_worked_by_hand():
    """Four matrices [2, 2] of 32 + 16 operations a step, two or three [2, 3] of 48 + 16, the head's one of 48."""
    assert muon_flops(ModelShape(StackShape(1, 2, 3, 1), 10)) == 5 * (4 * 48 + 2 * 64 + 48)
    plain, gated = StackShape(1, 2, 3, 1), StackShape(1, 2, 3, 1, gated=True)
    of_layer = 4 * 48 + 2 * 64
    for attention, more in (("self", 0), ("cross", 0), ("self_cross", 4 * 48)):
        assert muon_flops(ModelShape(plain, 10, plain, attention), steps=1) == 2 * of_layer + more + 48
    assert muon_flops(ModelShape(plain, 10, plain, "shared"), steps=1) == of_layer + 48
    assert muon_flops(ModelShape(gated, 10, gated), steps=1) == 2 * (4 * 48 + 3 * 64) + 48


@pytest.mark.parametrize(
    ("changes", "visible", "predicted"),
    [
        ({}, 435.2, 76.8),
        ({"encoder_mask_fraction": 0.25}, 454.4, 76.8),
        ({"mask_prob": 0.4, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1}, 348.16, 204.8),
        ({"masked_input": "kept"}, 512, 76.8),
        ({"masked_input": "random", "tokens_per_sample": 128}, 128, 19.2),
    ],
)
def test_batches_of_the_task_s_options(changes: dict[str, Any], visible: float, predicted: float):
    options = {"mask_prob": 0.15, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "encoder_mask_fraction": 0.0}
    options = {**options, "masked_input": "dropped", "tokens_per_sample": 512, **changes}
    batch = BatchShape.from_config(SimpleNamespace(**options), sequences=3)
    assert (batch.sequences, batch.visible, batch.predicted) == pytest.approx((3, visible, predicted))


LENGTH, MASKED = 12, [1, 4, 5]


def product_added_in_place(added_to: Any, left: Any, right: Any, *unused: Any, **options: Any) -> int:
    """Operations of ``addmm_``, from the shapes of its tensors; torch counts ``addmm`` alone."""
    return 2 * left[0] * left[1] * right[1]


def counted(run: Any) -> int:
    """Operations of all matrix products of a forward and a backward pass, counted by torch."""
    mapping = {torch.ops.aten.addmm_: product_added_in_place}
    # Fused attention hides its products from the counter.
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter, sdpa_kernel(SDPBackend.MATH):
        run().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        ({}, True),
        ({"decoder_embed_dim": 24, "decoder_ffn_embed_dim": 40, "decoder_attention_heads": 2}, True),
        ({"decoder_attention": "self_cross"}, True),
        ({"decoder_attention": "cross", "decoder_embed_dim": 16}, True),
        ({"decoder_attention": "shared", "decoder_layers": 1}, True),
        ({"decoder_attention": "shared", "encoder_layers": 5}, True),
        ({"decoder_layers": 0}, False),
        ({"layer": "modern", "positions": "rotary", "relative_buckets": "none"}, True),
    ],
    ids=str,
)
def test_our_model_multiplies_what_the_model_says(changes: dict[str, Any], dropped: bool):
    # The backend that shows its products, where the package has several.
    config = model_config(**changes, attention="plain")
    model = MaelmModel(config, dictionary_of(40), predicts_masked_tokens=True).train()
    sequences = random_sequences([LENGTH] * 3)
    net_input, target = batch_of(sequences, [MASKED] * 3, None if dropped else 39)
    sample = {"net_input": net_input, "target": target, "ntokens": 3 * LENGTH, "nsentences": 3}
    visible = LENGTH - len(MASKED) if dropped else LENGTH
    shape = ModelShape.from_config(config, 40)
    expected = training_flops(shape, BatchShape(3, LENGTH, visible, len(MASKED)))
    assert counted(lambda: MaelmCriterion(None)(model, sample)[0]) == expected


def test_stock_roberta_multiplies_what_the_model_says():
    ours = MaelmModel(model_config(), dictionary_of(40), predicts_masked_tokens=True)
    roberta = stock_roberta(ours, layers=2, width=32, ffn=64, heads=4, max_positions=64).train()
    tokens = torch.from_numpy(np.stack(random_sequences([LENGTH] * 3)))
    masked = torch.zeros(3, LENGTH, dtype=torch.bool)
    masked[:, MASKED] = True

    def loss() -> torch.Tensor:
        logits = roberta(tokens, masked_tokens=masked)[0]
        return F.cross_entropy(logits, tokens[masked], reduction="sum")

    shape = ModelShape(StackShape(2, 32, 64, 4), 40, computes_unread=True)
    assert counted(loss) == training_flops(shape, BatchShape(3, LENGTH, LENGTH, len(MASKED)))
    assert math.isfinite(loss().item())
