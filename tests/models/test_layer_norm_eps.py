"""The number that LayerNorm adds to the variance: in every LayerNorm, in checkpoints, and never mixed up."""

from types import SimpleNamespace

import pytest
import torch
from support import batch_of, model_config, model_of, random_sequences
from torch import nn

from fairseq_maelm.models.checks import check_config
from fairseq_maelm.modules.transformer import DECODER_ATTENTION

OTHER = 1e-12


def norms(model: nn.Module) -> list[nn.LayerNorm]:
    return [part for part in model.modules() if isinstance(part, nn.LayerNorm)]


@pytest.mark.parametrize("attention", DECODER_ATTENTION)
@pytest.mark.parametrize("decoder_layers", [0, 2])
def test_every_layer_norm_has_the_number(attention: str, decoder_layers: int) -> None:
    changes = {"decoder_attention": attention} if decoder_layers else {}
    for eps in (1e-5, OTHER):
        model = model_of(layer_norm_eps=eps, decoder_layers=decoder_layers, **changes)
        # Of the embeddings, of two layers, of the head; a decoder has one in front, and two or three in each layer.
        in_layer = 2 if attention in ("self", "cross") else 3
        assert len(norms(model)) == 1 + 2 * 2 + 1 + (decoder_layers and 1 + decoder_layers * in_layer)
        assert {each.eps for each in norms(model)} == {eps}


def test_the_number_is_computed_with() -> None:
    """States of small variance, where it decides: against the default model with the number put into each part."""
    usual, other = model_of(), model_of(layer_norm_eps=1e-3)
    batch, _ = batch_of(random_sequences([9, 7]), [[2, 5], [3]])
    for model in (usual, other):
        for name, parameter in model.named_parameters():
            if name.startswith("encoder.embed_"):
                parameter.data *= 0.01
    with torch.no_grad():
        before = usual(**batch, features_only=True)[0]
        for each in norms(usual):
            each.eps = 1e-3
        assert torch.equal(usual(**batch)[0], other(**batch)[0])
        assert (before - other(**batch, features_only=True)[0]).abs().max() > 0.01


@pytest.mark.parametrize("pretrained", [1e-5, OTHER])
def test_a_checkpoint_of_another_number_is_refused(pretrained: float) -> None:
    other = OTHER if pretrained == 1e-5 else 1e-5
    state = model_of(layer_norm_eps=pretrained).state_dict()
    with pytest.raises(ValueError, match=f"trained with --layer-norm-eps {pretrained} and not {other}: "):
        model_of(layer_norm_eps=other).load_state_dict(dict(state), strict=True)
    model_of(layer_norm_eps=pretrained).load_state_dict(dict(state), strict=True)


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-15, 0.1, float("nan")])
def test_numbers_that_no_model_has_are_refused(eps: float) -> None:
    config = SimpleNamespace(**{**vars(model_config()), "bf16": False, "layer_norm_eps": eps})
    with pytest.raises(ValueError, match=r"--layer-norm-eps must be in \[1e-14, 0.01\]"):
        check_config(config)
