"""Our classes with ModernBERT's layers: transformers' own without masks, unchanged by padding and masks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import assert_padding_changes_nothing

transformers = pytest.importorskip("transformers")

from fairseq_maelm.hf import MaelmModernConfig, MaelmModernForMaskedLM, MaelmModernModel  # noqa: E402

MASK = 29
NUMBERS: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "local_attention": 4,
    "local_rope_theta": 100.0,
    "initializer_range": 0.3,
}
OURS = {"mask_token_id": MASK, "decoder_layers": 2}
TOKENS = torch.tensor([[0, 5, MASK, 7, 2, 1, 1], [0, MASK, MASK, 6, 8, 9, 2]])


def model_of(**changes: Any) -> Any:
    torch.manual_seed(0)
    return MaelmModernForMaskedLM(MaelmModernConfig(**{**NUMBERS, **OURS, **changes})).eval()


def test_the_encoder_is_modernbert() -> None:
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    # Version 4 of transformers reads the period and the bases under other names.
    older = {"global_attn_every_n_layers": 2, "global_rope_theta": 10_000.0}
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**NUMBERS, **older, **special, rope_parameters=rope, reference_compile=False)
    stock, ours = transformers.ModernBertModel(config).eval(), model_of().model
    stock.load_state_dict(ours.state_dict())
    inside = TOKENS.ne(1)
    with torch.no_grad():
        expected = stock(input_ids=TOKENS, attention_mask=inside.long()).last_hidden_state
        torch.testing.assert_close(ours(TOKENS)[0][inside], expected[inside], rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing() -> None:
    assert_padding_changes_nothing(model_of(), TOKENS)


def test_nobody_reads_a_mask_and_masks_read_all() -> None:
    model = model_of()
    masks, visible = TOKENS == MASK, (TOKENS != MASK) & (TOKENS != 1)
    with torch.no_grad():
        before = model(TOKENS, output_hidden_states=True).hidden_states
        model.get_input_embeddings().weight[MASK] += torch.randn(16)
        after = model(TOKENS, output_hidden_states=True).hidden_states
        model.get_input_embeddings().weight[6] += torch.randn(16)
        last = model(TOKENS).logits
    assert len(before) == 5
    assert all(torch.equal(one[visible], other[visible]) for one, other in zip(before, after))
    # Of four layers, masks pass the second and the last.
    assert torch.equal(before[0][masks], before[1][masks]) and torch.equal(before[2][masks], before[3][masks])
    assert not torch.equal(before[1][masks], before[2][masks])
    assert not torch.allclose(last[1, 1:3], model(TOKENS.where(TOKENS != 6, 7)).logits[1, 1:3])


def test_masks_alone_and_padding_alone_give_finite_scores() -> None:
    with torch.no_grad():
        assert model_of()(torch.tensor([[MASK, MASK, 1], [0, 5, 2], [1, 1, 1]])).logits.isfinite().all()


def test_more_tokens_than_positions_are_refused() -> None:
    assert model_of()(torch.full((1, 32), 5))[0].shape == (1, 32, 30)
    with pytest.raises(ValueError, match="33 tokens are more than the model's 32 positions"):
        model_of()(torch.full((1, 33), 5))


def test_loss_and_gradients_reach_every_parameter() -> None:
    model = model_of(embedding_dropout=0.1, mlp_dropout=0.1, attention_dropout=0.1).train()
    output = model(TOKENS, labels=torch.where(TOKENS == MASK, 4, -100))
    rows = output.logits[TOKENS == MASK]
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(rows, torch.full((len(rows),), 4)))
    output.loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_vocabulary_is_resized_and_saved(tmp_path: Path) -> None:
    model = model_of()
    with torch.no_grad():
        before = model(TOKENS).logits
    model.resize_token_embeddings(40, mean_resizing=False)
    with torch.no_grad():
        after = model(TOKENS).logits
    assert after.shape[-1] == 40
    torch.testing.assert_close(after[..., :30], before)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(again) is MaelmModernForMaskedLM
    assert type(transformers.AutoModel.from_pretrained(tmp_path)) is MaelmModernModel
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits, after)
    assert again.decoder.weight is again.get_input_embeddings().weight


def test_models_that_predict_masks_need_to_know_the_mask() -> None:
    with pytest.raises(ValueError, match="mask_token_id is not set.* give MaelmModernConfig the id"):
        model_of(mask_token_id=None)
