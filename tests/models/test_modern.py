"""Models of ModernBERT's layer: transformers' own with weights copied, rotary positions, initialization, options."""

from typing import Any

import pytest
import torch
from support import FAMILIES, dictionary_of, model_config, model_of, random_sequences
from torch import Tensor

from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.finetuning_heads import ClassificationHead, TokenHead

MODERN = FAMILIES["modern"]
# Our names -> theirs, the first that fits; names of the encoder are below "model".
THEIRS = {
    "encoder.embed_tokens": "embeddings.tok_embeddings",
    "encoder.layernorm_embedding": "embeddings.norm",
    "encoder.final_layer_norm": "final_norm",
    "encoder.layers": "layers",
    "self_attn.qkv_proj": "attn.Wqkv",
    "self_attn.out_proj": "attn.Wo",
    "self_attn_layer_norm": "attn_norm",
    "final_layer_norm": "mlp_norm",
    "fc1": "mlp.Wi",
    "fc2": "mlp.Wo",
    "lm_head.dense": "head.dense",
    "lm_head.layer_norm": "head.norm",
    "lm_head.bias": "decoder.bias",
}


def batch(lengths: list[int]) -> Tensor:
    """Sequences as <int64>[B, S], padded on the right."""
    rows = [torch.from_numpy(sequence) for sequence in random_sequences(lengths)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)


def transformers_model(model: MaelmModel) -> Any:
    """transformers' model with the weights of ours."""
    transformers = pytest.importorskip("transformers")
    ours = model.config
    config = transformers.ModernBertConfig(
        vocab_size=model.encoder.embed_tokens.num_embeddings,
        hidden_size=ours.encoder_embed_dim,
        intermediate_size=ours.encoder_ffn_embed_dim,
        num_hidden_layers=ours.encoder_layers,
        num_attention_heads=ours.encoder_attention_heads,
        norm_eps=ours.layer_norm_eps,
        max_position_embeddings=ours.max_positions,
        pad_token_id=1,
        **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 0),
        **({"local_attention": ours.local_attention} if ours.local_attention else {}),
        global_attn_every_n_layers=ours.global_every,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": float(ours.rotary_base)},
            "sliding_attention": {"rope_type": "default", "rope_theta": float(ours.local_rotary_base)},
        },
    )
    state = {}
    for name, tensor in model.state_dict().items():
        new = name
        for mine, theirs in THEIRS.items():
            new = new.replace(mine, theirs)
        state[f"model.{new}" if name.startswith("encoder.") else new] = tensor
    state = {name: tensor for name, tensor in state.items() if name != "_extra_state"}
    state["decoder.weight"] = model.encoder.embed_tokens.weight
    theirs = transformers.ModernBertForMaskedLM(config).eval()
    theirs.load_state_dict(state, strict=True)
    return theirs


@pytest.mark.parametrize("lengths", [[30, 30], [13, 30, 7]], ids=["whole", "padded"])
@pytest.mark.parametrize("local_base", [None, 50])
def test_equals_transformers_modernbert(lengths: list[int], local_base: int | None) -> None:
    model = model_of(**MODERN, decoder_layers=0, encoder_layers=5, rotary_base=900, local_rotary_base=local_base)
    theirs = transformers_model(model)
    tokens = batch(lengths)
    inside = tokens.ne(1)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=inside.long(), output_hidden_states=True)
        logits, _ = model(tokens)
        states, extra = model.extract_features(tokens, return_all_hiddens=True)
    torch.testing.assert_close(logits[inside], expected.logits[inside], rtol=1e-5, atol=1e-5)
    for ours, hidden in zip(extra["inner_states"][:-1], expected.hidden_states[:-1], strict=True):
        torch.testing.assert_close(ours[inside], hidden[inside], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        last = theirs.model(tokens, attention_mask=inside.long()).last_hidden_state
    torch.testing.assert_close(states[inside], last[inside], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "every"), [(128, 3), (9, 2)])
def test_local_attention_equals_transformers_modernbert(window: int, every: int) -> None:
    """At published settings and lengths, padded; also without masked positions, which transformers hides as keys."""
    options = {"local_attention": window, "global_every": every, "max_positions": 512, "local_rotary_base": 10_000}
    model = model_of(**MODERN, decoder_layers=0, encoder_layers=5, rotary_base=160_000, **options)
    theirs = transformers_model(model)
    tokens = batch([300, 512])
    visible = tokens.ne(1) & (torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) > 0.3)
    with torch.no_grad():
        expected = theirs.model(tokens, attention_mask=visible.long()).last_hidden_state
        rows = [torch.nonzero(row)[:, 0] for row in visible]
        positions = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        dropped = torch.nn.utils.rnn.pad_sequence([tokens[i, row] for i, row in enumerate(rows)], True, 1)
        states = model.encoder(dropped, positions).states
    for i, row in enumerate(rows):
        torch.testing.assert_close(states[i, : len(row)], expected[i, row], rtol=1e-5, atol=1e-5)


def test_angles_are_in_single_precision_under_autocast() -> None:
    """In bfloat16 positions above 256 coincide in pairs, and neighbors would be told apart no more."""
    encoder = model_of(**MODERN, max_positions=512).encoder
    tokens = batch([8])
    with torch.autocast("cpu", torch.bfloat16):
        near, far = (encoder(tokens, torch.arange(8)[None] + start, False).states for start in (0, 500))
    assert near.dtype == torch.bfloat16
    torch.testing.assert_close(near.float(), far.float(), rtol=0.1, atol=0.1)


def test_initialization_is_scaled_by_the_depth() -> None:
    torch.manual_seed(0)
    sizes = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 256, "encoder_layers": 8, "decoder_layers": 2}
    model = MaelmModel(model_config(**MODERN, **sizes, decoder_attention="self_cross"), dictionary_of(400))
    checked = 0
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            assert (parameter == (0 if name == "lm_head.bias" else 1)).all(), name
            continue
        scaled = {"encoder.layers": 16**-0.5, "decoder.layers": 4**-0.5}.get(name[:14], 1.0)
        outputs = name.endswith(("out_proj.weight", "fc2.weight"))
        assert abs(parameter.std() / (0.02 * (scaled if outputs else 1.0)) - 1) < 0.05, name
        checked += 1
    assert checked == 8 * 4 + 2 * 7 + 2


def test_heads_have_modernberts_shape() -> None:
    model = model_of(**MODERN)
    model.register_classification_head("topic", num_classes=3)
    model.register_token_head("tags", 5)
    for parameter in model.classification_heads.parameters():
        parameter.data.normal_()
    model.eval()
    tokens = batch([9, 9])
    states = model.extract_features(tokens)[0]
    for name, kind, prefix in (("topic", ClassificationHead, ""), ("tags", TokenHead, "transform.")):
        head = model.classification_heads[name]
        assert isinstance(head, kind)
        weights = dict(head.named_parameters())
        assert set(weights) == {
            *(f"{prefix}{part}.weight" for part in ("dense", "layer_norm")),
            "out_proj.weight",
            "out_proj.bias",
        }
        inner = torch.nn.functional.gelu(states @ weights[f"{prefix}dense.weight"].T)
        inner = torch.nn.functional.layer_norm(inner, inner.shape[-1:], weights[f"{prefix}layer_norm.weight"])
        expected = inner @ weights["out_proj.weight"].T + weights["out_proj.bias"]
        scores = model(tokens, classification_head_name=name)[0]
        torch.testing.assert_close(scores, expected[:, 0] if name == "topic" else expected)


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        ({}, {"rotary_base": 500}, "--rotary-base 10000, not 500"),
        ({"rotary_base": 500}, {"rotary_base": 500, "local_rotary_base": 7}, "--local-rotary-base 500, not 7"),
        ({}, {"decoder_positions": "absolute"}, "--decoder-positions rotary, not absolute"),
        ({}, {"layer_norm_eps": 1e-12}, "--layer-norm-eps 1e-05, not 1e-12"),
        ({}, {"layer": "post_norm"}, "the checkpoint and the model have different sizes"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(saved: dict[str, Any], loaded: dict[str, Any], message: str) -> None:
    state = model_of(**MODERN, **saved).state_dict()
    model_of(**MODERN, **saved, seed=1).load_state_dict(dict(state), strict=True)
    with pytest.raises(ValueError, match=message):
        model_of(**{**MODERN, **loaded}).load_state_dict(dict(state), strict=True)


def test_what_is_left_open_follows_the_positions() -> None:
    paper, modern = model_config(), model_config(_name="maelm_modern_17m", **MODERN)
    assert (paper.layer, paper.positions, paper.decoder_positions) == ("post_norm", "absolute", "absolute")
    assert (paper.relative_buckets, modern.relative_buckets, modern.decoder_positions) == ("t5", "none", "rotary")
    assert (modern.rotary_base, modern.local_rotary_base) == (10_000, 10_000)
    decoder = model_of(decoder_positions="rotary")
    assert decoder.encoder.embed_positions is not None and decoder.decoder.embed_positions is None
