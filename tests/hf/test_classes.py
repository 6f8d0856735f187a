"""Our classes for transformers: buckets, padding, lengths, and machines without fairseq or this package."""

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


@pytest.mark.parametrize(
    ("size", "value", "told"),
    [
        ("num_hidden_layers", 10**6, "num_hidden_layers 1000000"),
        ("num_hidden_layers", 900, "asks for"),
        ("hidden_size", 10**9, "hidden_size 1000000000"),
        ("intermediate_size", 99_999, "asks for"),
        ("max_position_embeddings", 10**9, "max_position_embeddings 1000000000"),
        ("vocab_size", 10**12, "vocab_size 1000000000000"),
    ],
)
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickled tensors"])
def test_sizes_that_the_weights_do_not_have_are_refused(
    size: str, value: int, told: str, safe: bool, tmp_path: Path
) -> None:
    model = MaelmForTokenClassification(MaelmConfig(**NUMBERS))
    model.save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert type(open_pretrained("AutoModelForTokenClassification", tmp_path)) is MaelmForTokenClassification
    assert type(open_pretrained("AutoModel", tmp_path)) is MaelmModel
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, size: value}))
    for kind in ("AutoModel", "AutoModelForTokenClassification"):
        with pytest.raises(ValueError, match=f"cannot read .*config.json .*{told}") as refused:
            open_pretrained(kind, tmp_path)
        assert "\n" not in str(refused.value)
