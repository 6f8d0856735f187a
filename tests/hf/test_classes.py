"""Our classes for transformers: buckets, padding, lengths, sizes, recomputation, and machines without fairseq."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_padding_changes_nothing

transformers = pytest.importorskip("transformers")

from fairseq_maelm.hf import (  # noqa: E402
    AUTO_CLASSES,
    MaelmConfig,
    MaelmForTokenClassification,
    MaelmModel,
    open_pretrained,
)
from fairseq_maelm.hf.configuration_maelm import relative_bucket  # noqa: E402
from fairseq_maelm.modules.attention.relative_position import BUCKET_FUNCTIONS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MASK = 29
NUMBERS: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 34,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "initializer_range": 0.5,
}
TOKENS = torch.tensor([[0, 5, MASK, 7, 2, 1, 1], [0, MASK, MASK, 6, 8, 9, 2]])

# Opens a folder by the registered classes without fairseq, and compares its outputs with the expected ones.
ELSEWHERE = """
import sys
sys.modules["fairseq"] = None
sys.path.insert(0, sys.argv[2])
import fairseq_maelm.hf, torch, transformers
expected = torch.load(sys.argv[1] + "/expected.pt")
for name, output in expected["outputs"].items():
    with torch.no_grad():
        found = getattr(transformers, name).from_pretrained(sys.argv[1]).eval()(expected["tokens"])[0]
    # Products may be summed in another order, because the weights have another alignment in memory.
    torch.testing.assert_close(found, output, rtol=1e-5, atol=1e-5)
print(any(name.startswith("fairseq.") for name in sys.modules))
"""


def model_of(model_class: type = MaelmModel, **changes: Any) -> Any:
    torch.manual_seed(0)
    return model_class(MaelmConfig(**{**NUMBERS, **changes})).eval()


@given(
    function=st.sampled_from(sorted(BUCKET_FUNCTIONS)),
    distance=st.integers(-1000, 1000),
    quarter=st.integers(1, 64),
    further=st.integers(2, 500),
)
def test_buckets_are_those_of_pretraining(function: str, distance: int, quarter: int, further: int) -> None:
    """The exported file cannot import the package's functions and repeats them."""
    numbers = 4 * quarter, quarter + further
    assert relative_bucket(function, distance, *numbers) == BUCKET_FUNCTIONS[function](distance, *numbers)


def test_padding_changes_nothing() -> None:
    assert_padding_changes_nothing(model_of(MaelmForTokenClassification), TOKENS)


def test_more_tokens_than_positions_are_refused() -> None:
    model = model_of()
    assert model(torch.full((1, 32), 5))[0].shape[1] == 32
    with pytest.raises(ValueError, match="33 tokens are more than the model's 32 positions"):
        model(torch.full((1, 33), 5))


def test_attention_weights_belong_to_the_states() -> None:
    """Attention in plain operations, which returns weights, equals torch's fused attention."""
    model = model_of()
    with torch.no_grad():
        fused, plain = model(TOKENS), model(TOKENS, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(fused.last_hidden_state[0, :5], plain.last_hidden_state[0, :5], rtol=1e-4, atol=1e-5)
    assert len(plain.attentions) == 2 and len(plain.hidden_states) == 3
    sums = plain.attentions[0].sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert plain.attentions[0][0, :, :, 5:].abs().max() == 0, "nobody reads padding"


def test_inputs_are_given_once() -> None:
    model = model_of()
    embedded = model.get_input_embeddings()(TOKENS)
    with torch.no_grad():
        by_tokens = model(TOKENS, attention_mask=torch.ones_like(TOKENS), position_ids=torch.arange(2, 9)[None])
        by_states = model(inputs_embeds=embedded)
    torch.testing.assert_close(by_tokens.last_hidden_state, by_states.last_hidden_state)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model(TOKENS, inputs_embeds=embedded)


def test_the_registered_classes_need_no_fairseq(tmp_path: Path) -> None:
    """tests/interop/export/test_elsewhere.py opens folders without this package too."""
    model = model_of(MaelmForTokenClassification)
    model.save_pretrained(tmp_path)
    outputs = {"AutoModel": model.mpnet(TOKENS)[0], "AutoModelForTokenClassification": model(TOKENS)[0]}
    outputs = {name: output.detach() for name, output in outputs.items()}
    torch.save({"tokens": TOKENS, "outputs": outputs}, tmp_path / "expected.pt")
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path), str(ROOT)]
    environment = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["False"]


def test_every_class_is_registered() -> None:
    for name, model in AUTO_CLASSES.items():
        assert type(getattr(transformers, name).from_config(MaelmConfig(**NUMBERS))) is model


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickled tensors"])
def test_more_parameters_than_the_weights_have_are_refused(safe: bool, tmp_path: Path) -> None:
    """tests/robustness has the sizes that are wrong by themselves."""
    model = MaelmForTokenClassification(MaelmConfig(**NUMBERS))
    model.save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert type(open_pretrained("AutoModelForTokenClassification", tmp_path)) is MaelmForTokenClassification
    assert type(open_pretrained("AutoModel", tmp_path)) is MaelmModel
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 99_999}))
    with pytest.raises(ValueError, match="cannot read .*config.json asks for") as refused:
        open_pretrained("AutoModel", tmp_path)
    assert "\n" not in str(refused.value)


def test_the_vocabulary_is_resized(tmp_path: Path) -> None:
    model = model_of(MaelmForTokenClassification)
    with torch.no_grad():
        before = model(TOKENS)[0]
    embeddings = model.resize_token_embeddings(37)
    assert len(embeddings.weight) == model.config.vocab_size == 37
    assert model.get_input_embeddings() is embeddings
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS)[0], before, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = MaelmForTokenClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(TOKENS)[0], model(TOKENS)[0])


def test_recomputed_activations_give_equal_gradients() -> None:
    """Recomputation uses the same dropout masks; attention weights come with it."""
    model = model_of(MaelmForTokenClassification, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    calls: list[None] = []
    for layer in model.mpnet.encoder.layer:
        layer.intermediate.register_forward_hook(lambda *_: calls.append(None))

    def gradients() -> tuple[dict[str, torch.Tensor], int]:
        model.zero_grad()
        calls.clear()
        torch.manual_seed(5)
        model(TOKENS)[0].sum().backward()
        return {key: parameter.grad.clone() for key, parameter in model.named_parameters()}, len(calls)

    expected, once = gradients()
    model.gradient_checkpointing_enable()
    found, twice = gradients()
    assert once == len(model.mpnet.encoder.layer) and twice == 2 * once
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert len(model(TOKENS, output_attentions=True).attentions) == once
    calls.clear()
    model.eval()(TOKENS)
    assert len(calls) == once, "nothing is recomputed without training"
