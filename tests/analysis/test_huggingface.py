"""Hugging Face folders with random weights: states, symbols and attention weights of four families."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_maelm.analysis.collect import CollectSettings, TextBlocks, collect
from fairseq_maelm.analysis.run import open_encoder
from fairseq_maelm.analysis.theorem import attend_only
from fairseq_maelm.libraries import import_transformers

pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
transformers = import_transformers()

TEXT = "the cook bakes a loaf of bread near an oven while every sailor rows to some distant island"
WORDS = TEXT.split()
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
FAMILIES = ("Bert", "Roberta", "MPNet", "ModernBert")


def save_model(family: str, folder: Path) -> Path:
    """Save a tiny model with random weights and a tokenizer of whole words."""
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **SPECIAL, cls_token="<s>", sep_token="</s>", model_max_length=1000
    )
    fast.save_pretrained(folder)
    extra = (
        {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2} if family == "ModernBert" else {}
    )
    config = getattr(transformers, f"{family}Config")(vocab_size=len(symbols) + 3, **SIZES, **extra)
    torch.manual_seed(0)
    getattr(transformers, f"{family}ForMaskedLM")(config).save_pretrained(folder)
    return folder


@pytest.fixture(params=FAMILIES)
def family_folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    return request.param, save_model(request.param, tmp_path / "model")


def write_text(path: Path) -> Path:
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS, 9)) for _ in range(40)]
    path.write_text("\n".join(lines[:20]) + "\n\n" + "\n".join([*lines[20:], "an unheardof <mask> word"]) + "\n")
    return path


def test_folder_is_analyzed(family_folder: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = family_folder
    encoder = open_encoder(folder)
    assert (encoder.num_layers, encoder.num_heads, encoder.width, encoder.kind) == (2, 4, 32, "mlm")
    assert encoder.max_length == 40 - (2 if family in ("Roberta", "MPNet") else 0)
    blocks = TextBlocks(write_text(tmp_path / "text.txt"), encoder, encoder.max_length, 10_000)
    assert max(blocks.sizes) <= encoder.max_length
    mask = encoder.vocabulary.mask
    assert all(block[0] == 0 and block[-1] == 2 and mask not in block for block in blocks)
    assert 3 in blocks[len(blocks) - 1], "a word that is not in the vocabulary stays, as the unknown symbol"
    settings = CollectSettings(conditions=("whole", "masked"), tokens=10_000, batch_tokens=200, double=True)
    grams = collect(encoder, blocks, settings)
    assert len(grams["whole"].real) == 3
    assert grams["masked"].mask[0].rows > 10
    assert grams["masked"].sets(0)["all"].rows == grams["whole"].real[0].rows == sum(blocks.sizes)
    with pytest.raises(ValueError, match="cannot be dropped"):
        encoder.hidden_states(torch.tensor([[0, 5, 2]]), torch.tensor([[0, 2, 3]]))


def test_states_of_padded_sequences_are_those_of_the_model_alone(family_folder: tuple[str, Path]) -> None:
    _, folder = family_folder
    encoder = open_encoder(folder)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    short = torch.tensor([[0, 7, 8, 2]])
    batch = torch.tensor([[0, 7, 8, 2, 1, 1], [0, 9, 10, 11, 12, 2]])
    with torch.inference_mode():
        expected = reference(short, output_hidden_states=True).hidden_states
        actual = encoder.hidden_states(batch)
    assert len(actual) == len(expected) == 3
    for ours, theirs in zip(actual, expected):
        assert torch.allclose(ours[0, :4], theirs[0], atol=1e-5)


def test_the_last_layer_is_what_the_model_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in transformers 4, whose ModernBERT normalizes the last layer's state after it has listed it."""
    encoder = open_encoder(save_model("ModernBert", tmp_path / "model"))
    tokens = torch.tensor([[0, 4, 5, 6, 2]])
    forward = encoder._model.forward

    def listed_before(**inputs: Any) -> Any:
        output = forward(**inputs)
        return type(output)(output.last_hidden_state, (*output.hidden_states[:-1], 7 * output.last_hidden_state))

    monkeypatch.setattr(encoder._model, "forward", listed_before)
    with torch.no_grad():
        states, expected = encoder.hidden_states(tokens), forward(input_ids=tokens).last_hidden_state
    assert len(states) == 3 and torch.equal(states[-1], expected)


def test_masks_are_scored_and_weights_drawn(family_folder: tuple[str, Path]) -> None:
    _, folder = family_folder
    encoder = open_encoder(folder)
    mask = encoder.vocabulary.mask
    reference = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = [
            reference(torch.tensor([row])).logits[0, place] for row, place in (([0, 7, mask, 2], 2), ([0, mask, 2], 1))
        ]
    found = encoder.masked_logits([np.array([0, 7, mask, 2]), np.array([0, mask, 2])])
    assert found is not None and torch.allclose(found, torch.stack(expected), atol=1e-5)
    tokens = torch.tensor([[0, 7, 8, 2]])
    with torch.inference_mode():
        states = [open_encoder(folder, None, seed).hidden_states(tokens)[-1] for seed in (1, 1, 2, None)]
    assert [torch.equal(states[0], each) for each in states[1:]] == [True, False, False]
    # transformers would give a model without an LM head a random one.
    transformers.AutoModel.from_pretrained(folder).save_pretrained(folder)
    assert open_encoder(folder).masked_logits([np.array([0, mask, 2])]) is None


def attention_of(model: Any, family: str) -> Any:
    layer = model.layers[0] if family == "ModernBert" else model.encoder.layer[0]
    return layer.attn if family == "ModernBert" else layer.attention.attn if family == "MPNet" else layer.attention


def test_attention_weights_compute_the_model_s_attention(family_folder: tuple[str, Path]) -> None:
    """The reference is computed head by head from the model's own parameters."""
    family, folder = family_folder
    encoder = open_encoder(folder)
    found = encoder.attention_weights()
    assert found is not None
    weights = list(found)
    assert len(weights) == 2
    attention = attention_of(transformers.AutoModel.from_pretrained(folder), family)
    if family == "ModernBert":
        query, key, value = attention.Wqkv.weight.chunk(3)
        output = attention.Wo.weight
    elif family == "MPNet":
        query, key, value, output = (getattr(attention, name).weight for name in "qkvo")
    else:
        inner = attention.self
        query, key, value = inner.query.weight, inner.key.weight, inner.value.weight
        output = attention.output.dense.weight
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    heads = []
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        logits = (states @ query[rows].T) @ (states @ key[rows].T).T / 8**0.5
        heads.append(logits.softmax(dim=-1) @ (states @ value[rows].T))
    expected = torch.cat(heads, dim=1) @ output.T
    real, mask = attend_only(states[:4].double(), states[4:].double(), weights[0])
    assert torch.allclose(torch.cat([real, mask]).float(), expected, atol=1e-5)


def test_broken_folders_and_prepared_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="transformers cannot read"):
        open_encoder(tmp_path)
    with pytest.raises(ValueError, match="give --text"):
        open_encoder(save_model("Bert", tmp_path / "model")).check_data(tmp_path)
