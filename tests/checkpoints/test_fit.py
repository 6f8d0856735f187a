"""A checkpoint fits a model or is refused; an MLM's starts an MAE-LM: its encoder, its LM head, and a new decoder."""

from typing import Any

import pytest
import torch
from support import FAMILIES, dictionary_of, model_config, model_of

from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.models.maelm import MaelmModel


def test_a_checkpoint_without_a_decoder_gives_encoder_and_head() -> None:
    mlm, model = model_of(decoder_layers=0), model_of(seed=1, decoder_embed_dim=16, decoder_ffn_embed_dim=24)
    before, state = dict(model.state_dict()), mlm.state_dict()
    before = {name: tensor.clone() for name, tensor in before.items()}
    model.load_state_dict(dict(state), strict=True)
    for name, tensor in model.state_dict().items():
        if name != "_extra_state":
            known = name in state and state[name].shape == tensor.shape
            assert known or name.startswith(("decoder.", "lm_head."))
            assert torch.equal(tensor, state[name] if known else before[name]), name
    assert torch.equal(model.lm_head.bias, mlm.lm_head.bias)


def last_layers(weights: dict[str, torch.Tensor], stack: str, layers: list[int]) -> list[torch.Tensor]:
    """Return all weights of layers that read a whole sequence; queries, keys and values in one matrix."""
    found = []
    for number in layers:
        layer = {
            name.removeprefix(f"{stack}.layers.{number}.").replace("cross_attn", "self_attn"): tensor
            for name, tensor in weights.items()
            if name.startswith(f"{stack}.layers.{number}.")
        }
        for kind in ("weight", "bias"):
            parts = [layer.pop(f"self_attn.{name}.{kind}", None) for name in ("q_proj", "kv_proj")]
            if parts[0] is not None:
                layer[f"self_attn.qkv_proj.{kind}"] = torch.cat(parts)
        found += [layer[name] for name in sorted(layer)]
    return found


@pytest.mark.parametrize("attention", ["self", "cross"])
@pytest.mark.parametrize(
    ("encoder", "sources"),
    [
        ({"encoder_layers": 3}, [1, 2]),
        ({"encoder_layers": 4, "local_attention": 4, "global_every": 3, **FAMILIES["modern"]}, [0, 3]),
    ],
    ids=["post-norm", "local attention"],
)
def test_a_new_decoder_begins_as_the_encoder_s_last_layers(attention: str, encoder: dict[str, Any], sources: list[int]):
    mlm = model_of(decoder_layers=0, **encoder)
    model = model_of(seed=1, decoder_layers=2, decoder_attention=attention, **encoder)
    for name, parameter in mlm.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter)
    model.load_state_dict(dict(mlm.state_dict()), strict=True)
    weights = model.state_dict()
    theirs, own = last_layers(weights, "encoder", sources), last_layers(weights, "decoder", [0, 1])
    assert len(own) == len(theirs) > 8
    assert all(map(torch.equal, own, theirs))
    assert torch.equal(weights["decoder.layernorm_embedding.weight"], weights["encoder.layernorm_embedding.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_embed_dim": 64}, r"the checkpoint and the model have different sizes \(\d+ differences"),
        ({"encoder_layers": 3}, r"different sizes .*encoder.layers.2\S* is missing"),
        ({"decoder_layers": 3}, r"different sizes .*decoder.layers.2\S* is missing"),
        ({"max_positions": 128}, "different sizes .*embed_positions"),
        ({"encoder_attention_heads": 2}, "--encoder-attention-heads 4, not 2"),
        ({"relative_buckets": "reference"}, "--relative-buckets t5, not reference"),
        ({"relative_buckets": "none"}, "--relative-buckets t5, not none"),
        ({"layer_norm_eps": 1e-12}, "--layer-norm-eps 1e-05, not 1e-12"),
        ({"relative_max_distance": 64}, "--relative-max-distance 20, not 64"),
        ({"decoder_attention": "cross"}, "--decoder-attention self, not cross"),
        ({"vocabulary_size": 41}, "the checkpoint's vocabulary has 40 symbols, but the data's has 41"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_model_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model_of(**changes).load_state_dict(dict(model_of().state_dict()), strict=True)


def test_a_shared_decoder_is_not_lost_or_begun_unnoticed(caplog: pytest.LogCaptureFixture) -> None:
    shared, mlm, separate = model_of(decoder_attention="shared"), model_of(decoder_layers=0), model_of()
    with pytest.raises(ValueError, match="--decoder-attention shared, and the model has no decoder .* omit"):
        mlm.load_state_dict(dict(shared.state_dict()), strict=True)
    with caplog.at_level("INFO"):
        with pytest.raises(ValueError, match="--decoder-attention shared, not self"):
            separate.load_state_dict(dict(shared.state_dict()), strict=True)
        shared.load_state_dict(dict(shared.state_dict()), strict=True)
        assert not caplog.text
        shared.load_state_dict(dict(mlm.state_dict()), strict=True)
    assert "2 encoder layers now also decode" in caplog.text


def test_another_vocabulary_of_the_same_size_is_refused():
    dictionary = dictionary_of(40)
    symbols, indices = dictionary.symbols, dictionary.indices
    symbols[7], symbols[8] = symbols[8], symbols[7]
    indices[symbols[7]], indices[symbols[8]] = 7, 8
    with pytest.raises(ValueError, match="another vocabulary of the same size"):
        MaelmModel(model_config(), dictionary).load_state_dict(dict(model_of().state_dict()), strict=True)


def test_the_encoder_of_a_fine_tuned_model_is_adapted_without_its_head(caplog):
    """Whatever its decoder was, which fine-tuning has removed."""
    fine_tuned = {
        name: tensor + 1 for name, tensor in model_of().state_dict().items() if name.startswith(("encoder.", SETTINGS))
    }
    fine_tuned |= {
        SETTINGS: model_of().state_dict()[SETTINGS],
        "classification_heads.x.out_proj.weight": torch.zeros(2, 3),
    }
    model = model_of(encoder_layers=2, decoder_layers=1, decoder_attention="shared")
    model.load_state_dict(dict(fine_tuned), strict=True)
    assert "head 'x' of the checkpoint (2 outputs) is dropped" in caplog.text
    assert all(
        torch.equal(fine_tuned[name], weight) for name, weight in model.encoder.state_dict(prefix="encoder.").items()
    )


def test_another_model_is_named():
    with pytest.raises(ValueError, match="not a checkpoint of the model maelm"):
        model_of().load_state_dict({"lm_head.bias": torch.zeros(3)}, strict=True)


def test_an_encoder_without_lm_head_gets_a_new_one_and_a_decoder(caplog):
    model, source = model_of(), model_of(decoder_layers=0).state_dict()
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    encoder = {name: weight + 1 for name, weight in source.items() if name.startswith("encoder.")}
    with caplog.at_level("INFO"):
        model.load_state_dict({**encoder, SETTINGS: source[SETTINGS]}, strict=True)
    assert "the checkpoint has no decoder and no LM head: this part of the model is new" in caplog.text
    expected = {**encoder, **{name: weight for name, weight in own.items() if name.startswith("lm_head.")}}
    assert len(expected) > 20 and all(torch.equal(model.state_dict()[name], each) for name, each in expected.items())
