"""Weights that are cast together have the values and the gradients that autocast's own casts give."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import FAMILIES, batch_of, model_of, random_sequences
from torch import Tensor, nn

from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.layer_modes import execute
from fairseq_maelm.modules.weight_casts import WeightCasts

VARIANTS: dict[str, dict[str, Any]] = {
    "maelm": {},
    "reads the encoder": {"decoder_attention": "self_cross"},
    "narrow decoder that reads the encoder only": {
        "decoder_attention": "cross",
        "decoder_embed_dim": 16,
        "decoder_ffn_embed_dim": 32,
        "decoder_attention_heads": 2,
    },
    "no decoder": {"decoder_layers": 0},
    "modern": FAMILIES["modern"],
}


def model_in_bf16(**changes: Any) -> MaelmModel:
    """A model in training, with dropout."""
    return model_of(precision="bf16", dropout=0.1, attention_dropout=0.1, **changes).train()


def loss_of(model: MaelmModel, seed: int = 3) -> Tensor:
    """The loss of a batch with padding; the same dropout for the same seed."""
    kept = None if model.decoder else model.mask_index
    net_input, targets = batch_of(random_sequences([13, 9, 16], seed=seed), [[2, 5, 7], [1, 4], [3, 8, 9, 14]], kept)
    torch.manual_seed(seed)
    return model(**net_input, target=targets)[0]


def gradients_of(model: MaelmModel) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    assert found.keys() == expected.keys() and sum(each is not None for each in expected.values()) > 5
    for name, gradient in expected.items():
        other = found[name]
        assert (gradient is None) == (other is None), name
        assert (
            gradient is None
            or other is None
            or (gradient.dtype, torch.equal(other, gradient))
            == (
                torch.float32,
                True,
            )
        ), name


def by_autocast(monkeypatch: pytest.MonkeyPatch, model: MaelmModel) -> MaelmModel:
    """The same model with autocast's own casts."""
    plain = copy.deepcopy(model)
    monkeypatch.setattr(plain.weight_casts, "in_use", lambda *others: nullcontext())
    return plain


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_values_and_gradients_are_those_of_autocast_bit_for_bit(
    changes: dict[str, Any], recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_in_bf16(**changes)
    plain = by_autocast(monkeypatch, model)
    execute(model, compiles=False, recomputes=recomputes)
    for update in (1, 2):  # of two batches each
        for seed in (3, 4):
            model.set_num_updates(update)
            loss, expected = loss_of(model, seed), loss_of(plain, seed)
            assert torch.equal(loss, expected)
            loss.backward()
            expected.backward()
        assert_same(gradients_of(model), gradients_of(plain))
        for each in (model, plain):
            for parameter in each.parameters():
                parameter.data -= 0.1 * parameter.grad / parameter.grad.norm()  # torch does not count it
                parameter.grad = None


@pytest.mark.parametrize("head", ["sentence", "token"])
def test_heads_of_fine_tuning_train_as_under_autocast(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_bf16()
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 2, 1]])
    model(tokens, features_only=True)
    for name in ("unused", "used"):
        (model.register_classification_head if head == "sentence" else model.register_token_head)(name, 3)
    plain = by_autocast(monkeypatch, model)
    for each in (model, plain):
        torch.manual_seed(0)
        scores, _ = each(tokens, features_only=True, classification_head_name="used")
        F.cross_entropy(scores.float().flatten(0, -2), torch.ones(scores[..., 0].shape, dtype=int).flatten()).backward()
    assert_same(gradients_of(model), gradients_of(plain))
    assert model.classification_heads["unused"].out_proj.weight.grad is None


def test_frozen_weights_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_bf16()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    plain = by_autocast(monkeypatch, model)
    for each in (model, plain):
        loss_of(each).backward()
    assert model.encoder.layers[0].fc1.weight.grad is None
    assert_same(gradients_of(model), gradients_of(plain))


def test_two_passes_may_share_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_bf16()
    plain = by_autocast(monkeypatch, model)
    for each in (model, plain):
        (loss_of(each, 3) + loss_of(each, 4)).backward()
    assert_same(gradients_of(model), gradients_of(plain))


# When copies are made


def together(action: Any) -> int:
    """The number of operations of an action that cast many weights or gradients."""
    with torch.autograd.profiler.profile() as profile:
        action()
    return sum(event.name == "aten::_foreach_copy_" for event in profile.function_events)


def test_an_update_of_several_batches_casts_once() -> None:
    model = model_in_bf16()
    model.set_num_updates(5)
    assert together(lambda: loss_of(model)) == 1
    assert together(lambda: loss_of(model)) == 0
    # Back in one operation for each of the four layers, and one for what is in none.
    loss = loss_of(model)
    assert together(loss.backward) == 5
    model.set_num_updates(6)
    assert together(lambda: loss_of(model)) == 1


def test_no_matrix_is_cast_alone_but_the_embeddings_of_tokens() -> None:
    model = model_in_bf16()
    net_input, _ = batch_of(random_sequences([13]), [[2, 5]])
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        model(**net_input)[0].float().sum().backward()
    casts = [tuple(event.input_shapes[0]) for event in profile.function_events if event.name == "aten::_to_copy"]
    matrices = {tuple(module.weight.shape) for module in model.modules() if isinstance(module, nn.Linear)}
    assert len(matrices) == 4 and not matrices & set(casts)
    # With them the head computes: once there, and back with their gradient.
    assert casts.count(tuple(model.encoder.embed_tokens.weight.shape)) == 2


def test_without_a_number_of_updates_every_pass_in_training_casts() -> None:
    model = model_in_bf16()
    before = loss_of(model)
    for parameter in model.parameters():
        parameter.data *= 0.5
    assert not torch.equal(loss_of(model), before)
    with torch.no_grad():
        assert together(lambda: loss_of(model)) == together(lambda: loss_of(model)) == 1


def test_evaluation_casts_once_until_weights_change() -> None:
    model = model_in_bf16().eval()
    with torch.no_grad():
        assert [together(lambda: loss_of(model)) for _ in range(3)] == [1, 0, 0]
        model.lm_head.dense.load_state_dict({"weight": torch.ones(32, 32), "bias": torch.zeros(32)})
        assert [together(lambda: loss_of(model)) for _ in range(2)] == [1, 0]
        model.encoder.layers[0].fc1.weight.data = 2 * model.encoder.layers[0].fc1.weight.data
        assert [together(lambda: loss_of(model)) for _ in range(2)] == [1, 0]
    # A pass in training comes between, as before every step of an optimizer, whatever that writes to.
    loss_of(model.train()).backward()
    for parameter in model.parameters():
        parameter.data *= 0.5
    with torch.no_grad():
        assert [together(lambda: loss_of(model.eval())) for _ in range(2)] == [1, 0]


def test_copies_made_in_inference_mode_do_not_stay_for_training() -> None:
    model = model_in_bf16().eval()
    with torch.inference_mode():
        assert [together(lambda: loss_of(model)) for _ in range(2)] == [1, 0]
    loss_of(model).backward()
    assert model.encoder.layers[0].fc1.weight.grad is not None


# What stays


def test_nothing_is_left_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_in_bf16()
    names, own = list(model.state_dict()), {module: set(module.__dict__) for module in model.modules()}
    loss_of(model).backward()
    assert {module: set(module.__dict__) for module in model.modules()} == own
    assert list(model.state_dict()) == names and model.encoder.layers[0].fc1.weight.dtype == torch.float32
    monkeypatch.setattr(model, "predict", lambda *others: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model)
    assert {module: set(module.__dict__) for module in model.modules()} == {**own, model: own[model] | {"predict"}}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_computes_with_its_own_weights(copied: Any) -> None:
    model = model_in_bf16().eval()
    with torch.no_grad():
        before = loss_of(model)
        other = copied(model)
        for parameter in other.parameters():
            parameter.data *= 0.5
        assert not torch.equal(loss_of(other), before)
        assert torch.equal(loss_of(model), before)
        # An exponential average of weights, for one, is written to in place.
        assert isinstance(other.weight_casts, WeightCasts) and other.weight_casts is not model.weight_casts


def test_fp32_and_half_precision_have_no_copies() -> None:
    for model in (model_of(precision="fp32"), model_of(precision="bf16").bfloat16().eval()):
        with torch.no_grad():
            assert together(partial(loss_of, model)) == 0
