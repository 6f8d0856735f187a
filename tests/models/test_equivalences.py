"""Settings that must not change the result."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from roberta import stock_roberta
from support import batch_of, model_of, random_sequences

from fairseq_maelm.architecture.families import FAIRSEQ_ROBERTA, take_weights

LENGTHS = [13, 30, 7, 2]
MASKED = [[0, 3, 4, 12], [1, 2, 28], [6], [1]]


def loss_and_gradients(model, net_input, targets):
    model.zero_grad()
    logits, _ = model(**net_input)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(first, second):
    torch.testing.assert_close(first[0], second[0], rtol=1e-6, atol=1e-5)
    assert first[1].keys() == second[1].keys()
    for name in first[1]:
        difference = (first[1][name] - second[1][name]).norm() / second[1][name].norm().clamp_min(1e-6)
        assert difference < 2e-5, f"{name}: {difference:.1e}"


# Batches of the other decoders are compared with single sequences of the plain model.
@pytest.mark.parametrize("attention", ["self_cross", "causal_cross"])
def test_padded_equals_unpadded(family, attention):
    model = model_of(**family, decoder_attention=attention).double()
    sequences = random_sequences(LENGTHS)
    together = loss_and_gradients(model, *batch_of(sequences, MASKED))
    loss, gradients, logits = torch.zeros((), dtype=torch.float64), {}, []
    for sequence, masked in zip(sequences, MASKED):
        net_input, targets = batch_of([sequence], [masked])
        assert not net_input["layout"]["encoder_padded"] and not net_input["layout"]["decoder_padded"]
        one, some = loss_and_gradients(model, net_input, targets)
        loss = loss + one
        gradients = {name: gradients.get(name, 0) + some[name] for name in some}
        logits.append(model(**net_input)[0])
    assert_same(together, (loss, gradients))
    logits = torch.cat(logits)
    torch.testing.assert_close(model(**batch_of(sequences, MASKED)[0])[0], logits, rtol=1e-9, atol=1e-9)


def test_order_of_visible_tokens_is_free(family):
    """The positions say where a token stands, not its place among the visible ones."""
    model = model_of(**family)
    net_input, targets = batch_of(random_sequences([20, 20]), [[1, 5, 7], [2, 3, 19]])
    sorted_order = loss_and_gradients(model, net_input, targets)
    width = net_input["src_tokens"].shape[1]
    order = torch.randperm(width, generator=torch.Generator().manual_seed(1))
    layout = dict(net_input["layout"])
    layout["positions"] = layout["positions"][:, order]
    layout["decoder_slots"] = layout["decoder_slots"].view(2, width)[:, order].reshape(-1)
    shuffled = {"src_tokens": net_input["src_tokens"][:, order], "layout": layout}
    assert not torch.equal(order, torch.arange(width))
    assert_same(loss_and_gradients(model, shuffled, targets), sorted_order)


def test_nothing_masked_is_the_plain_sequence(family):
    """Without a layout every token is visible, has its own position and is predicted."""
    model = model_of(**family)
    tokens = torch.from_numpy(np.stack(random_sequences([11, 11])))
    everything = [list(range(11))] * 2
    net_input, _ = batch_of(list(tokens.numpy()), everything, mask_index=None)
    layout = {
        **net_input["layout"],
        "positions": torch.arange(11).repeat(2, 1),
        "decoder_rows": torch.arange(22),
        "decoder_slots": torch.arange(22),
        "encoder_padded": False,
    }
    with_layout, _ = model(tokens, layout=layout)
    torch.testing.assert_close(model(tokens)[0].view(22, -1), with_layout, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training_layout", [True, False])
def test_equals_stock_roberta(training_layout):
    """No decoder, masks kept, no relative bias: fairseq's own RoBERTa, with its weights copied."""
    model = model_of(decoder_layers=0, relative_buckets="none", encoder_embed_dim=32)
    roberta = stock_roberta(model, layers=2, width=32, ffn=64, heads=4, max_positions=64)
    options = {"encoder_layers": 2, "encoder_embed_dim": 32, "decoder_layers": 0, "relative_buckets": "none"}
    state = take_weights(roberta.state_dict(), FAIRSEQ_ROBERTA, options, "masked-lm")
    model.load_state_dict({"_extra_state": model.get_extra_state(), **state})
    sequences = random_sequences(LENGTHS)
    net_input, _ = batch_of(sequences, MASKED, model.mask_index)
    if training_layout:
        logits, _ = model(**net_input)
    else:
        logits, _ = model(net_input["src_tokens"])
        logits = logits.reshape(-1, logits.shape[-1])[net_input["layout"]["predicted_slots"]]
    theirs, _ = roberta(net_input["src_tokens"])
    theirs = theirs.reshape(-1, theirs.shape[-1])[net_input["layout"]["predicted_slots"]]
    torch.testing.assert_close(logits, theirs, rtol=1e-5, atol=1e-5)
    features, _ = model.extract_features(net_input["src_tokens"][:1, :13])
    expected, _ = roberta(net_input["src_tokens"][:1, :13], features_only=True)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-5)


def test_features_are_the_encoders_alone(family):
    """Decoder and head have no influence on features; masks dropped or not, padding has none either."""
    model = model_of(**family)
    tokens = torch.from_numpy(np.stack(random_sequences([11, 11])))
    before, extra = model.extract_features(tokens, return_all_hiddens=True)
    assert len(extra["inner_states"]) == 3
    assert torch.equal(extra["inner_states"][-1], before)
    for parameter in [*model.decoder.parameters(), *model.lm_head.parameters()]:
        parameter.data.normal_()
    assert torch.equal(model.extract_features(tokens)[0], before)
    padded = torch.cat([tokens, torch.ones(2, 5, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model.extract_features(padded)[0][:, :11], before, rtol=1e-5, atol=1e-5)
