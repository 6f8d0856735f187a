"""Computing in bfloat16 keeps weights and gradients in single precision and stays within bfloat16's own error."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import FAMILIES, batch_of, model_of, random_sequences
from torch import Tensor, nn

from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.autocast import LayerNorm, computing_in

VARIANTS = {
    "maelm": {},
    "reads the encoder only": {"decoder_attention": "cross"},
    "no decoder": {"decoder_layers": 0},
    "shared": {"decoder_attention": "shared"},
    "modern, reads the encoder": {**FAMILIES["modern"], "decoder_attention": "self_cross"},
}


def gradients_of(model: MaelmModel) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits and all gradients of a batch with padding, in the model's precision."""
    net_input, targets = batch_of(random_sequences([13, 9, 16]), [[2, 5, 7], [1, 4], [3, 8, 9, 14]])
    model.zero_grad()
    logits = model.train()(**net_input)[0]
    F.cross_entropy(logits.float(), targets).backward()
    return logits.detach(), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def model_in(precision: str, **changes: Any) -> MaelmModel:
    """A model with weights of the size of trained ones."""
    model = model_of(precision=precision, **changes)
    for parameter in model.parameters():
        parameter.data *= 0.5
    return model


def error(actual: Tensor, expected: Tensor) -> float:
    """The relative error of a tensor as a whole."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_bf16_is_close_to_double_precision(changes: dict[str, Any]) -> None:
    exact_logits, exact = gradients_of(model_in("fp32", **changes).double())
    single_logits, single = gradients_of(model_in("fp32", **changes))
    logits, gradients = gradients_of(model_in("bf16", **changes))
    assert (logits.dtype, single_logits.dtype) == (torch.bfloat16, torch.float32)
    assert error(single_logits, exact_logits) < 1e-5
    # Eight bits a number, a dozen sub-layers. Not zero: it did compute in bfloat16.
    assert 1e-4 < error(logits, exact_logits) < 0.05
    assert gradients.keys() == exact.keys() and len(gradients) > 20
    scale = max(float(gradient.norm()) for gradient in exact.values())
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32, name
        # A gradient that is tiny next to the others (a key's bias has none at all) has no relative error.
        if float(exact[name].norm()) > 1e-4 * scale:
            assert error(gradient, exact[name]) < 0.1, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_compute_as_they_are(dtype: torch.dtype) -> None:
    """fairseq's --fp16 halves the model; a model trained in bf16 may be halved for inference."""
    exact_logits, exact = gradients_of(model_in("fp32").double())
    logits, gradients = gradients_of(model_in("fp32").to(dtype))
    assert logits.dtype == dtype
    assert error(logits, exact_logits) < 16 * torch.finfo(dtype).eps
    assert {gradient.dtype for gradient in gradients.values()} == {dtype}
    assert error(gradients["lm_head.dense.weight"], exact["lm_head.dense.weight"]) < 32 * torch.finfo(dtype).eps
    net_input, _ = batch_of(random_sequences([13]), [[2, 5]])
    with torch.no_grad():
        halved = model_in("bf16").to(dtype).eval()(**net_input)[0]
        assert torch.equal(halved, model_in("fp32").to(dtype).eval()(**net_input)[0])


def test_all_hidden_states_and_class_scores_are_computed_in_bf16() -> None:
    model = model_in("bf16").train()
    model.register_classification_head("topic", num_classes=3)
    tokens = torch.tensor([[0, 5, 6, 7, 2]])
    features, extra = model.extract_features(tokens, return_all_hiddens=True)
    scores, _ = model(tokens, features_only=True, classification_head_name="topic")
    assert [states.dtype for states in (features, scores, *extra["inner_states"])] == [torch.bfloat16] * 5
    scores.float().sum().backward()
    assert model.classification_heads["topic"].dense.weight.grad.dtype == torch.float32


# LayerNorm


def test_layer_norm_is_torch_s_outside_autocast() -> None:
    states = torch.randn(3, 5, 16)
    ours, theirs = LayerNorm(16), nn.LayerNorm(16)
    assert torch.equal(ours(states), theirs(states))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_adds_in_single_precision_under_autocast(dtype: torch.dtype) -> None:
    """With a mean of 100 and a deviation of 1, sums in bfloat16 would be worthless."""
    torch.manual_seed(0)
    states = (100 + torch.randn(64, 256)).to(dtype).requires_grad_()
    norm = LayerNorm(256)
    norm.weight.data.uniform_(0.5, 1.5)
    with torch.autocast("cpu", torch.bfloat16):
        normalized = norm(states)
    exact = F.layer_norm(states.double(), (256,), norm.weight.double(), norm.bias.double())
    assert normalized.dtype == torch.bfloat16
    assert error(normalized.detach(), exact.detach()) < 2 * torch.finfo(torch.bfloat16).eps
    normalized.float().sum().backward()
    assert norm.weight.grad is not None and norm.weight.grad.dtype == torch.float32


# What is refused


def test_fp32_and_inference_change_nothing() -> None:
    weight = torch.zeros(1)
    with computing_in("fp32", weight, True):
        assert not torch.is_autocast_enabled("cpu")
    with computing_in("bf16", weight.half(), False):
        assert not torch.is_autocast_enabled("cpu")
    with computing_in("bf16", weight, False):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16 and torch.is_autocast_enabled("cpu")


def test_two_kinds_of_half_precision_are_refused() -> None:
    with pytest.raises(ValueError, match="either --precision bf16 or --fp16"):
        gradients_of(model_in("bf16").half())
    with torch.autocast("cpu", torch.float16), pytest.raises(ValueError, match="either --precision bf16 or --amp"):
        gradients_of(model_in("bf16"))
