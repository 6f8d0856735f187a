"""The loss computes at masked positions alone, and equals cross-entropy of the full computation's logits."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import batch_of, model_of, random_sequences

from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.data.masking_variants import EncoderView, output_layout
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.output_positions import predicted_positions
from fairseq_maelm.modules.transformer import DECODER_ATTENTION

PADDED = ([13, 30, 7, 2], [[0, 3, 4, 12], [1, 2, 28], [6], [1]])
# As many masks in each sequence, and no padding.
DENSE = ([12, 12], [[2, 3, 11], [0, 1, 7]])
# Sequences without any mask, in the middle and at the end.
BARE = ([9, 14, 14, 5], [[2, 5], [], [3, 4, 8, 9], []])


def batch(lengths, masked, view=None, **options):
    return batch_of(random_sequences(lengths), masked, view=view, **options)


def gradients_of(model: MaelmModel) -> dict[str, torch.Tensor]:
    assert all(parameter.grad is not None for parameter in model.parameters()), "a parameter without a gradient"
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def assert_loss_equals_that_of_the_logits(model, net_input, target, tolerance):
    logits, _ = model(**net_input)
    expected = F.cross_entropy(logits, target, reduction="sum")
    expected.backward()
    plain = gradients_of(model)
    loss, extra = model(**net_input, target=target)
    loss.backward()
    ours = gradients_of(model)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    assert extra["correct"] == (logits.argmax(dim=-1) == target).sum()
    assert len(plain) > 10
    for name, gradient in plain.items():
        scale = max(1.0, gradient.abs().max().item())
        torch.testing.assert_close(
            ours[name], gradient, rtol=0, atol=tolerance * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


KEPT, RANDOM = EncoderView("kept"), EncoderView("random_kept")
ALONE = {"decoder_layers": 0}
NARROW = {"decoder_embed_dim": 16, "decoder_attention_heads": 2}


@pytest.mark.parametrize("shape", [DENSE, BARE], ids=["dense", "bare"])
@pytest.mark.parametrize(
    ("changes", "view"),
    [
        *(({"decoder_attention": attention}, None) for attention in DECODER_ATTENTION),
        ({"decoder_layers": 1}, EncoderView(positions="consecutive")),
        ({"decoder_attention": "self_cross"}, EncoderView("reset")),
        ({"decoder_attention": "self_cross"}, KEPT),
        ({}, EncoderView("random")),
        ({}, EncoderView(mask_fraction=0.5)),
        ({**ALONE, "encoder_layers": 1}, RANDOM),
        ({**ALONE, "local_attention": 4}, KEPT),
        (NARROW, None),
    ],
    ids=str,
)
def test_every_decoder_and_the_encoder_alone(family, changes, view, shape):
    model = model_of(**{**changes, **family}).double()
    net_input, target = batch(*shape, view)
    assert net_input["layout"]["all_visible"] or view not in (KEPT, RANDOM)
    assert_loss_equals_that_of_the_logits(model, net_input, target, 1e-10)


@settings(max_examples=25)
@given(data=st.data())
def test_any_lengths_and_masks(data):
    lengths = data.draw(st.lists(st.integers(3, 16), min_size=1, max_size=4))
    # Something must be visible in each sequence, and something predicted in one.
    masked = [sorted(data.draw(st.sets(st.integers(0, length - 2), max_size=length - 1))) for length in lengths]
    masked[0] = masked[0] or [1]
    attention = data.draw(st.sampled_from(DECODER_ATTENTION))
    model = model_of(decoder_attention=attention, encoder_layers=1).double()
    assert_loss_equals_that_of_the_logits(model, *batch(lengths, masked), 1e-10)


def test_a_batch_without_masks_costs_nothing():
    net_input, target = batch([5, 7], [[], []])
    for changes in ({}, {"decoder_attention": "self_cross"}, {"decoder_layers": 0}):
        model = model_of(**changes)
        loss, extra = model(**net_input, target=target)
        loss.backward()
        assert loss == 0 and extra["correct"] == 0
        assert not any(gradient.any() for gradient in gradients_of(model).values())


def rows_through(module: torch.nn.Module, model: MaelmModel, net_input: dict[str, Any], **target: Any) -> int:
    """How many states pass a module in one forward pass."""
    counts = []
    handle = module.register_forward_pre_hook(lambda _, arguments: counts.append(arguments[0].flatten(0, -2).shape[0]))
    model(**net_input, **target)
    handle.remove()
    return sum(counts)


@pytest.mark.parametrize("attention", ["self", "self_cross", "cross"])
def test_positions_that_nothing_reads_are_left_out(family, attention):
    model = model_of(**family, decoder_attention=attention)
    net_input, target = batch(*PADDED)
    slots, predicted = 4 * 30, len(target)
    first, last = model.decoder.layers
    attend = last.self_attn if attention == "self" else last.cross_attn
    for module in (last.fc1, last.final_layer_norm, attend.out_proj):
        assert rows_through(module, model, net_input) == (predicted if attention == "cross" else slots)
        assert rows_through(module, model, net_input, target=target) == predicted
    # Without self-attention no slot reads another, so the first layer needs no more than the last.
    assert rows_through(first.fc1, model, net_input, target=target) == (predicted if attention == "cross" else slots)
    if attention == "cross":
        assert rows_through(first.cross_attn.q_proj, model, net_input, target=target) == predicted
        assert rows_through(model.decoder.layernorm_embedding, model, net_input, target=target) == predicted


def test_a_shared_decoder_computes_masks_in_its_layers_only(family):
    model = model_of(**family, encoder_layers=4, decoder_attention="shared", decoder_layers=2)
    net_input, target = batch(*PADDED)
    visible, predicted = net_input["src_tokens"].numel(), len(target)
    counts = [rows_through(layer.fc1, model, net_input, target=target) for layer in model.encoder.layers]
    assert counts == [visible, visible + predicted, visible, predicted]


@pytest.mark.parametrize("shape", [DENSE, BARE], ids=["dense", "bare"])
@pytest.mark.parametrize(
    ("changes", "view"),
    [
        *(({"decoder_attention": attention}, None) for attention in DECODER_ATTENTION),
        *(({"decoder_attention": "shared", "local_attention": 4}, view) for view in (None, EncoderView("random"))),
        *(({"decoder_attention": a}, EncoderView(mask_fraction=0.5)) for a in ("self_cross", "cross", "shared")),
        *(({**ALONE, **changes}, KEPT) for changes in ({}, {"local_attention": 4})),
        (NARROW, EncoderView("reset")),
    ],
    ids=str,
)
def test_padding_and_spare_rows_change_nothing(family, changes, view, shape):
    model = model_of(**{"encoder_layers": 4, **changes, **family}).double()
    everything = changes.get("decoder_attention") == "causal_cross"
    results = []
    for spare in (None, (34, 6)):
        net_input, target = batch(*shape, view, everything=everything, spare=spare)
        logits, _ = model(**net_input)
        loss, extra = model(**net_input, target=target)
        loss.backward()
        results.append((loss.detach(), extra["correct"], logits.detach(), gradients_of(model)))
    layout = net_input["layout"]
    assert layout["encoder_padded"] and layout["decoder_padded"] and layout["predicted_tokens"] == len(target)
    assert len(layout["predicted_slots"]) == len(shape[0]) * layout["output_length"] >= len(target) == len(logits)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_the_encoders_last_layer_leaves_them_out_without_a_decoder(family):
    model = model_of(**family, decoder_layers=0)
    net_input, target = batch(*PADDED, EncoderView("kept"))
    first, last = model.encoder.layers
    assert rows_through(last.fc1, model, net_input, target=target) == len(target)
    assert rows_through(last.self_attn.out_proj, model, net_input, target=target) == len(target)
    assert rows_through(first.fc1, model, net_input, target=target) == 4 * 30
    assert rows_through(last.fc1, model, net_input, features_only=True) == 4 * 30, "features are of all positions"
    # A head on sentences reads the first state of each alone.
    model.register_classification_head("sentence", 3)
    assert rows_through(last.fc1, model, net_input, classification_head_name="sentence") == 4
    assert rows_through(first.fc1, model, net_input, classification_head_name="sentence") == 4 * 30


@pytest.mark.parametrize(("length", "training"), [(30, True), (130, True), (130, False)])
def test_a_head_on_sentences_reads_a_local_last_layer(family, length, training):
    model = model_of(**family, decoder_layers=0, local_attention=4, max_positions=140).train(training)
    model.register_classification_head("sentence", 3)
    net_input, _ = batch([length, 7], [[], []], KEPT)
    scores, _ = model(**net_input, classification_head_name="sentence")
    states, _ = model(**net_input, features_only=True)
    torch.testing.assert_close(scores, model.classification_heads["sentence"](states[:, 0]), rtol=1e-5, atol=1e-5)
    scores.sum().backward()


def test_dropout_reaches_the_last_layer(family):
    model = model_of(**family, decoder_layers=0, dropout=0.5, attention_dropout=0.5).train()
    net_input, target = batch(*PADDED, EncoderView("kept"))
    losses = {model(**net_input, target=target)[0].item() for _ in range(2)}
    assert len(losses) == 2


def test_output_positions_by_sequence_and_back():
    predicted = np.zeros((3, 5), dtype=bool)
    predicted[0, [1, 4]] = predicted[2, [0, 2, 3]] = True
    outputs = predicted_positions(output_layout(predicted))
    assert (outputs.indices.tolist(), outputs.padded.tolist()) == ([1, 4, 10, 12, 13], [0, 1, 6, 7, 8])
    assert (outputs.length, outputs.wanted) == (3, 5)
    states = torch.arange(1, 16).view(3, 5)
    taken = outputs.take(states)
    assert taken.tolist() == [2, 5, 11, 13, 14]
    padded = outputs.pad(taken, 3)
    assert padded.tolist() == [[2, 5, 0], [0, 0, 0], [11, 13, 14]]
    assert outputs.unpad(padded).tolist() == taken.tolist()


def test_spare_rows_are_other_positions_of_the_sequences():
    predicted = np.zeros((3, 5), dtype=bool)
    predicted[0, [1, 4]] = predicted[2, [0, 2, 3]] = True
    outputs = predicted_positions(output_layout(predicted, planned=3))
    assert outputs.indices.tolist() == [1, 4, 10, 12, 13, 0, 5, 6, 7]
    assert outputs.padded.tolist() == [0, 1, 6, 7, 8, 2, 3, 4, 5]
    assert (outputs.length, outputs.wanted) == (3, 5)
    everything = np.ones((1, 17), dtype=bool)
    assert output_layout(everything, planned=3)["output_length"] == 17, "more than there are positions"


def test_a_loss_needs_a_layout_and_a_head():
    net_input, target = batch(*DENSE)
    with pytest.raises(ValueError, match="give both the layout"):
        model_of()(net_input["src_tokens"], target=target)
    model = model_of()
    model.lm_head = None
    with pytest.raises(ValueError, match="encoder without LM head"):
        model(**net_input, target=target)


@pytest.mark.parametrize("changes", [{}, {"decoder_attention": "self_cross"}, {"decoder_layers": 0}], ids=str)
def test_a_step_asks_the_device_for_nothing(family, changes):
    """Tensors of the device "meta" have no values: whatever would wait for a value fails."""
    net_input, target = batch(*PADDED, EncoderView("kept" if "decoder_layers" in changes else "dropped"))

    def without_values(value):
        return value.to("meta") if torch.is_tensor(value) else value

    layout = {name: without_values(value) for name, value in net_input.pop("layout").items()}
    net_input = {**{name: without_values(value) for name, value in net_input.items()}, "layout": layout}
    sample = {"net_input": net_input, "target": without_values(target), "ntokens": 52, "nsentences": 4}
    model = model_of(**family, dropout=0.1, attention_dropout=0.1, **changes).to("meta").train()
    with pytest.raises(RuntimeError):
        bool(sample["target"].any())
    loss, sample_size, logged = MaelmCriterion(None)(model, sample)
    loss.backward()
    assert sample_size == len(target)
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    assert all(isinstance(logged[name], int) for name in ("slots", "filled_slots", "ntokens", "sample_size"))
