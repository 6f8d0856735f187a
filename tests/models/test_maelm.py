"""Sizes, initialization, heads and the checks of the configuration."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.nan_detector import NanDetector
from omegaconf import OmegaConf
from support import batch_of, dictionary_of, model_config, model_of, random_sequences

from fairseq_maelm.architecture.checks import warn_of_a_deep_decoder
from fairseq_maelm.architecture.config import fill_from_size
from fairseq_maelm.architecture.encoder_options import SIZES
from fairseq_maelm.models.maelm import MaelmModel, complete_config
from fairseq_maelm.modules.transformer import DECODER_ATTENTION


def fresh_model(**changes):
    torch.manual_seed(0)
    return MaelmModel(model_config(**changes), dictionary_of(changes.pop("vocabulary", 40)))


def test_sizes_are_the_papers():
    """Table 3 and appendix C, written out."""
    columns = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    assert [SIZES["maelm_base"][c] for c in columns] == [12, 768, 3072, 12]
    assert [SIZES["maelm_base_plus_plus"][c] for c in columns] == [12, 768, 3072, 12]
    assert [SIZES["maelm_large_plus_plus"][c] for c in columns] == [24, 1024, 4096, 16]
    papers = [row for row in SIZES.values() if row["layer"] == "post_norm"]
    buckets = [(row["relative_num_buckets"], row["relative_max_distance"]) for row in papers]
    assert buckets == [(32, 128), (32, 128), (32, 128), (64, 128), (128, 256)]
    assert [SIZES[f"maelm_{name}"]["decoder_layers"] for name in ("base", "base_plus_plus", "large_plus_plus")] == [
        4
    ] * 3


def test_sizes_keep_the_papers_rule_for_the_decoder():
    """Section 3: 1/6 to 1/3 of the encoder's depth; the least that there can be is one layer, and the most are four."""
    papers = {name: row for name, row in SIZES.items() if row["layer"] == "post_norm"}
    for name, row in papers.items():
        encoder, decoder = row["encoder_layers"], row["decoder_layers"]
        assert decoder in (1, 4) or encoder / 6 <= decoder <= encoder / 3, name
        assert decoder <= max(1, encoder / 3), name
    for name in SIZES.keys() - papers.keys():
        assert SIZES[name]["decoder_attention"] == "shared", name
        assert SIZES[name]["decoder_layers"] == max(2, SIZES[name]["encoder_layers"] // 2), name


@pytest.mark.parametrize(
    ("encoder", "decoder", "attention", "warned"),
    [
        *[(12, 4, "self", 0), (12, 5, "self", 1), (6, 2, "self", 0), (2, 1, "self", 0), (2, 2, "self", 1)],
        *[(2, 0, "self", 0), (12, 6, "cross", 0), (12, 12, "shared", 0)],
    ],
)
def test_a_decoder_of_more_than_a_third_is_told_in_a_line(encoder, decoder, attention, warned, caplog):
    sizes = {"encoder_layers": encoder, "decoder_layers": decoder}
    warn_of_a_deep_decoder(SimpleNamespace(**sizes, decoder_attention=attention))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned


def test_what_the_user_gives_wins_over_the_size():
    config = SimpleNamespace(encoder_layers=3, decoder_layers=0)
    fill_from_size(config, "maelm_tiny")
    assert (config.encoder_layers, config.decoder_layers, config.encoder_embed_dim) == (3, 0, 128)


@pytest.mark.parametrize(("name", "width"), [("maelm_small", 384), ("maelm", 768), ("something", 768)])
def test_completed_by_name(name, width):
    config = SimpleNamespace(_name=name, encoder_embed_dim=None)
    complete_config(config)
    assert config.encoder_embed_dim == width


@pytest.mark.parametrize("kind", [lambda options: SimpleNamespace(**options), OmegaConf.create])
def test_options_younger_than_the_checkpoint_take_their_defaults(kind):
    config = kind({"_name": "maelm_tiny", "encoder_layers": 3, "dropout": 0.3})
    complete_config(config)
    assert (config.encoder_layers, config.encoder_embed_dim, config.dropout) == (3, 128, 0.3)
    assert (config.init_std, config.relative_buckets) == (0.02, "t5")


@pytest.mark.parametrize(("std", "embedding_std"), [(0.02, 0.02), (0.05, 0.08)])
def test_initialization(std, embedding_std):
    sizes = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 256, "max_positions": 256}
    model = fresh_model(**sizes, init_std=std, embedding_init_std=embedding_std)
    checked = 0
    for name, parameter in model.named_parameters():
        if "layer_norm" in name or "layernorm" in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.numel() > 1000:
            expected = 0.02 if "relative" in name else embedding_std if "embed_" in name else std
            assert abs(parameter.std() / expected - 1) < 0.05, name
            assert abs(parameter.mean()) < 0.1 * expected, name
        checked += 1
    assert checked > 40
    assert not model.encoder.embed_tokens.weight[1].any()
    assert abs(model.encoder.relative_attention_bias.weight.std() / 0.02 - 1) < 0.3
    assert {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)} == {1e-5}


@pytest.mark.parametrize("attention", DECODER_ATTENTION)
def test_every_layer_norm_has_the_number(attention: str) -> None:
    model = model_of(layer_norm_eps=1e-12, decoder_attention=attention)
    norms = [part for part in model.modules() if isinstance(part, torch.nn.LayerNorm)]
    assert len(norms) >= 6 and {each.eps for each in norms} == {1e-12}


def test_dropout_in_the_encoder_only():
    model = fresh_model(dropout=0.3, attention_dropout=0.2)
    assert {layer.dropout for layer in model.encoder.layers} == {0.3}
    assert {layer.self_attn.dropout for layer in model.encoder.layers} == {0.2}
    assert {layer.dropout for layer in model.decoder.layers} == {0.0}
    assert {layer.self_attn.dropout for layer in model.decoder.layers} == {0.0}
    model.train()
    visible = model.encode(torch.tensor([[0, 9, 8, 7, 6, 2]]))
    full = torch.randn(1, 6, 32)
    assert torch.equal(model.decode(full, visible, None), model.decode(full, visible, None))


def test_loss_at_the_start_is_that_of_guessing():
    model = fresh_model(vocabulary=40).eval()
    net_input, targets = batch_of(random_sequences([40] * 8), [list(range(1, 39, 2))] * 8)
    loss = F.cross_entropy(model(**net_input)[0], targets)
    assert abs(loss.item() - math.log(40)) < 0.1


def test_heads():
    model = model_of()
    tokens = torch.from_numpy(random_sequences([9])[0])[None]
    model.register_classification_head("topic", num_classes=3)
    model.register_classification_head("score", num_classes=1, inner_dim=7)
    assert model.classification_heads["score"].dense.out_features == 7
    logits, _ = model(tokens, classification_head_name="topic")
    states, _ = model.extract_features(tokens)
    head = model.classification_heads["topic"]
    expected = head.out_proj(torch.tanh(head.dense(states[:, 0])))
    torch.testing.assert_close(logits, expected)
    assert logits.shape == (1, 3)


def test_model_for_fine_tuning_predicts_no_tokens():
    model = MaelmModel(model_config(), dictionary_of(40), predicts_masked_tokens=False)
    assert model.decoder is None and model.lm_head is None
    tokens = torch.from_numpy(random_sequences([9])[0])[None]
    assert model.extract_features(tokens)[0].shape == (1, 9, 32)
    with pytest.raises(ValueError, match="is an encoder without LM head"):
        model(tokens)
    model.register_classification_head("topics", 3)
    with pytest.raises(ValueError, match="because fine-tuning without a prompt removes it"):
        model(tokens)


def test_fairseq_finds_the_origin_of_a_nan(caplog):
    """Its detector puts hooks on all modules when gradients are not numbers, and they must not fail."""
    caplog.set_level("WARNING", logger="fairseq.nan_detector")
    model = model_of()
    model.decoder.layers[1].fc1.weight.data[0, 0] = float("nan")
    net_input, target = batch_of(random_sequences([9, 12]), [[2, 3], [5]])
    with NanDetector(model):
        model(**net_input, target=target)[0].backward()
    assert "NaN detected in output of decoder.layers.1.fc1, " in caplog.text
