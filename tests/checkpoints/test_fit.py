"""An MLM's checkpoint starts an MAE-LM: its encoder and LM head, and a new decoder."""

import pytest
import torch
from support import model_of


@pytest.mark.parametrize(
    "decoder",
    [{}, {"decoder_attention": "cross", "decoder_layers": 2}, {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24}],
    ids=["self", "cross", "narrow"],
)
def test_a_checkpoint_without_a_decoder_gives_encoder_and_head(decoder):
    mlm = model_of(decoder_layers=0)
    model = model_of(seed=1, **decoder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = mlm.state_dict()
    model.load_state_dict(dict(state), strict=True)
    for name, tensor in model.state_dict().items():
        if name == "_extra_state":
            continue
        source = state.get(name)
        if source is None or source.shape != tensor.shape:
            assert name.startswith(("decoder.", "lm_head."))
            assert torch.equal(tensor, before[name])
        else:
            assert torch.equal(tensor, source)
    assert torch.equal(model.lm_head.bias, mlm.lm_head.bias)


def test_another_decoder_is_not_replaced():
    saved = model_of(decoder_attention="cross").state_dict()
    with pytest.raises(ValueError, match="--decoder-attention cross and not self"):
        model_of().load_state_dict(dict(saved), strict=True)
