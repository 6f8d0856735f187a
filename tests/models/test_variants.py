"""The rows of Table 2, told apart by information flow: which output depends on which input, by gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import batch_of, model_of, random_sequences

from fairseq_maelm.data.masking_variants import MASKED_INPUTS, EncoderView
from fairseq_maelm.modules.transformer import DECODER_ATTENTION

LENGTH, MASKED = 10, [3, 4, 8]
MASK = 39


MAELM = EncoderView()


def flow(model, view=MAELM, length=LENGTH, masked=MASKED):
    """Which logits depend on which token of the encoder's input, and on which slot of the decoder's.

    Returns:
        <bool>[M, T] dependence of each prediction on the embedding of the encoder's token at a position (False where
        the encoder sees none), and <bool>[M, T] dependence on the decoder's input (before its positions are added).
    """
    everything = model.decoder is not None and model.decoder.autoregressive
    net_input, _ = batch_of(random_sequences([length]), [masked], view=view, everything=everything)
    seen = np.arange(length) if view.masked_input != "dropped" else np.setdiff1d(np.arange(length), masked)
    captured = {}
    handle = model.encoder.layernorm_embedding.register_forward_pre_hook(
        lambda module, arguments: captured.update(encoder=arguments[0])
    )
    original = model.reassemble

    def detached(*arguments):
        # What enters the decoder here is to be told from what comes by cross-attention.
        captured["decoder"] = original(*arguments).detach().requires_grad_()
        return captured["decoder"]

    results = []
    for replacement, name in ((original, "encoder"), (detached, "decoder")):
        model.reassemble = replacement
        logits, _ = model(**net_input)
        dependence = torch.zeros(len(logits), length, dtype=torch.bool)
        slots = masked if model.config.decoder_attention == "cross" else np.arange(length)
        columns = seen if name == "encoder" else slots
        for row in range(len(logits)):
            (gradient,) = torch.autograd.grad(logits[row].square().sum(), captured[name], retain_graph=True)
            dependence[row, columns] = gradient.view(len(columns), -1).abs().sum(dim=-1) > 1e-9
        results.append(dependence)
    handle.remove()
    del model.reassemble
    return results


def places(*positions):
    row = torch.zeros(LENGTH, dtype=torch.bool)
    row[list(positions)] = True
    return row


EVERYWHERE = torch.ones(LENGTH, dtype=torch.bool)
VISIBLE = places(*[position for position in range(LENGTH) if position not in MASKED])


@pytest.mark.parametrize("masked_input", MASKED_INPUTS)
def test_encoder_views_with_the_decoder(family, masked_input):
    through_encoder, through_decoder = flow(model_of(**family).double(), EncoderView(masked_input))
    sees = VISIBLE if masked_input == "dropped" else EVERYWHERE
    assert (through_encoder == sees).all(), "predictions read what the encoder sees, and all of it"
    assert through_decoder.all(), "self-attention of the decoder reads every slot"


@pytest.mark.parametrize("masked_input", MASKED_INPUTS)
def test_which_encoder_states_enter_the_decoder(family, masked_input):
    """The decoder's input at masked positions: the mask embedding itself, or the encoder's state."""
    model = model_of(**family).double()
    net_input, _ = batch_of(random_sequences([LENGTH]), [MASKED], view=EncoderView(masked_input))
    output = model.encode(net_input["src_tokens"], net_input["layout"])
    encoded, full = output.states, model.reassemble(output, net_input["layout"])[0]
    embedding = model.encoder.embed_tokens.weight[MASK]
    for position in MASKED:
        is_reset = torch.equal(full[position], embedding)
        assert is_reset == (masked_input in ("dropped", "reset", "random"))
        if not is_reset:
            torch.testing.assert_close(full[position], encoded[0, position])


def test_cross_attention_beside_self_attention(family):
    through_encoder, through_decoder = flow(model_of(**family, decoder_attention="self_cross").double())
    assert (through_encoder == VISIBLE).all()
    assert through_decoder.all()


def inputs(model):
    net_input, _ = batch_of(random_sequences([LENGTH]), [MASKED])
    return net_input["src_tokens"], net_input["layout"]


def test_left_to_right_with_cross_attention(family):
    through_encoder, through_decoder = flow(model_of(**family, decoder_attention="causal_cross").double())
    assert len(through_decoder) == LENGTH, "every token is predicted"
    assert (through_encoder == VISIBLE).all()
    # Slot t holds the token before t, so the prediction of t reads the tokens before it and nothing else.
    assert (through_decoder == torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()).all()


def test_left_to_right_input_is_shifted(family):
    model = model_of(**family, decoder_attention="causal_cross")
    tokens = torch.tensor([[0, 9, 8, 7]])
    shifted = model.reassemble(model.encode(tokens), None)
    assert torch.equal(shifted, model.encoder.embed_tokens(torch.tensor([[2, 0, 9, 8]])))


@pytest.mark.parametrize("attention", ["self_cross", "cross", "causal_cross"])
@pytest.mark.parametrize("masked_input", ["reset", "random"])
def test_cross_attention_does_not_bring_back_what_is_reset(family, attention, masked_input):
    """States of masked positions may shape the other states; the decoder must not read them."""
    model = model_of(**family, decoder_attention=attention).double()
    # With identity in place of the encoder's layers a state depends on its own token alone.
    model.encoder.layers = torch.nn.ModuleList()
    through_encoder, _ = flow(model, EncoderView(masked_input))
    assert (through_encoder == VISIBLE).all()
    through_encoder, _ = flow(model, EncoderView("kept"))
    assert through_encoder.all()


def test_misaligned_positions_reach_both_kinds_of_positions():
    model = model_of().double()
    sequences = random_sequences([LENGTH])
    net_input, _ = batch_of(sequences, [MASKED])
    plain = model.encode(net_input["src_tokens"], net_input["layout"]).states
    consecutive = {**net_input["layout"], "positions": torch.arange(LENGTH - len(MASKED))[None]}
    misaligned = model.encode(net_input["src_tokens"], consecutive).states
    assert not torch.allclose(plain[:, :3], misaligned[:, :3])
    # As for a text that never had the masked tokens.
    torch.testing.assert_close(misaligned, model.encode(net_input["src_tokens"]).states)


@pytest.mark.parametrize("attention", [each for each in DECODER_ATTENTION if each != "shared"])
def test_the_decoder_reads_the_encoders_states_at_their_original_positions(family, attention):
    """Misaligned positions are those of the encoder's input; its states have their own places in the decoder."""
    model = model_of(**family, decoder_attention=attention).double()
    sequences, masked = random_sequences([LENGTH, 7]), [MASKED, [1, 2, 3]]
    views = (EncoderView(), EncoderView(positions="consecutive"))
    layouts = [batch_of(sequences, masked, view=view)[0]["layout"] for view in views]
    assert not torch.equal(layouts[0]["positions"], layouts[1]["positions"])
    visible = model.encode(batch_of(sequences, masked)[0]["src_tokens"], layouts[0])
    aligned, misaligned = (model.decode(model.reassemble(visible, each), visible, each) for each in layouts)
    assert torch.equal(aligned, misaligned)


@pytest.mark.parametrize(("attention", "width"), [("self", 48), ("self_cross", 16), ("cross", 16)])
def test_other_decoder_widths(attention, width):
    changes = {"decoder_embed_dim": width, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 2}
    model = model_of(decoder_attention=attention, encoder_layers=3, decoder_layers=3, **changes)
    assert model.decoder.input_projection.weight.shape == (width, 32)
    assert model.lm_head.output_projection.weight.shape == (32, width)
    assert len(model.decoder.layers) == 3
    assert model.decoder.layers[0].fc1.weight.shape == (24, width)
    assert model.encoder.layers[0].fc1.weight.shape == (64, 32)
    tokens, layout = inputs(model)
    logits, _ = model(tokens, layout=layout)
    assert logits.shape == (len(MASKED), 40)
    F.cross_entropy(logits, torch.tensor([5, 6, 7])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_whole_sequences_can_be_scored_by_every_decoder(family):
    for attention in DECODER_ATTENTION:
        model = model_of(**family, decoder_attention=attention)
        padded = torch.tensor([[0, 9, 8, 7, 2, 1, 1], [0, 5, 6, 7, 8, 9, 2]])
        short = model(padded[:1, :5])[0]
        torch.testing.assert_close(model(padded)[0][:1, :5], short, rtol=1e-4, atol=1e-4)
