"""Resizing the vocabulary and recomputing activations with our classes for transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from fairseq_maelm.hf import AUTO_CLASSES, MaelmConfig  # noqa: E402

MASK = 12
VOCABULARY = 30
TOKENS = torch.tensor([[0, 5, MASK, 7, 2, 1, 1], [0, MASK, MASK, 6, 8, 9, 2]])
LABELS = {
    "AutoModelForSequenceClassification": {"labels": torch.tensor([0, 1])},
    "AutoModelForTokenClassification": {"labels": torch.where(TOKENS == MASK, 1, 0)},
    "AutoModelForQuestionAnswering": {
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([3, 4]),
    },
}
by_name = pytest.mark.parametrize("name", AUTO_CLASSES)


def model_of(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    numbers = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    numbers |= {"max_position_embeddings": 34, "relative_attention_num_buckets": 8, "vocab_size": VOCABULARY}
    config = MaelmConfig(
        **{**numbers, "relative_attention_max_distance": 12, "initializer_range": 0.5, **changes},
    )
    model = AUTO_CLASSES[name](config)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return model


@by_name
@pytest.mark.parametrize("size", [VOCABULARY + 7, VOCABULARY - 5], ids=["grow", "shrink"])
def test_the_vocabulary_is_resized(name: str, size: int, tmp_path: Path) -> None:
    model = model_of(name).eval()
    with torch.no_grad():
        before = model(TOKENS)[0]
    embeddings = model.resize_token_embeddings(size)
    assert len(embeddings.weight) == model.config.vocab_size == size
    assert model.get_input_embeddings() is embeddings
    with torch.no_grad():
        after = model(TOKENS)[0]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = AUTO_CLASSES[name].from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS)[0], model(TOKENS)[0])
    assert again.config.vocab_size == size
    # Training works after resizing.
    model(TOKENS, **LABELS.get(name, {}))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@by_name
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_give_equal_gradients(name: str, reentrant: bool) -> None:
    """Recomputation uses the same dropout masks."""
    model = model_of(name, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    calls = count_layer_calls(model)

    def gradients() -> tuple[dict[str, torch.Tensor], int]:
        model.zero_grad()
        calls.clear()
        torch.manual_seed(5)
        model(TOKENS, **LABELS.get(name, {}))[0].sum().backward()
        return {key: parameter.grad.clone() for key, parameter in model.named_parameters()}, len(calls)

    expected, once = gradients()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    found, twice = gradients()
    assert once == 3 and twice == 2 * once
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    model.gradient_checkpointing_disable()
    assert gradients()[1] == once
    model.gradient_checkpointing_enable()
    calls.clear()
    model.eval()(TOKENS)
    assert len(calls) == once, "nothing is recomputed without training"


def count_layer_calls(model: torch.nn.Module) -> list[None]:
    """Return a list that gets an entry for every computation of a layer's feed-forward network."""
    calls: list[None] = []
    note: Callable[..., None] = lambda *_: calls.append(None)  # noqa: E731
    for part in model.modules():
        if type(part).__name__ == "MPNetIntermediate":
            part.register_forward_hook(note)
    return calls


def test_attention_weights_come_with_recomputed_activations() -> None:
    model = model_of("AutoModel").train()
    model.gradient_checkpointing_enable()
    output = model(TOKENS, output_attentions=True, output_hidden_states=True)
    assert len(output.attentions) == 3 and len(output.hidden_states) == 4
    output.attentions[-1].sum().backward()
