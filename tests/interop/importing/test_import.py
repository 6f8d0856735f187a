"""Imported models compute the same as their sources, or the import is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.interop.importing.run import CHECKPOINT_FILE, FACTS_FILE, import_model
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import MODEL_FILE

from . import sources
from .sources import transformers

TEXT = "The sailor takes the rope; déjà vu."
MASKED = "The sailor takes the <mask> to the harbour."


def bert_vocabulary(folder: Path) -> Path:
    """Make a RoBERTa whose special symbols have BERT's names and numbers, with rows without tokens."""
    tokenizer = sources.word_pieces(sources.folder_of(folder), sources.BERT_SPECIAL, [])
    rows = tokenizer.get_vocab_size() + 3
    return sources.save(folder, "Roberta", tokenizer, rows, sources.BERT_NAMES, pad_token_id=0)


def early_mask(folder: Path) -> Path:
    """Make a RoBERTa with <mask> right after the other special symbols, as when a tokenizer is trained with them."""
    tokenizer = sources.byte_pairs(sources.folder_of(folder), [*sources.SPECIAL, "<mask>"], [])
    return sources.save(folder, "Roberta", tokenizer, tokenizer.get_vocab_size())


def mpnet(folder: Path) -> Path:
    """Make a folder like mpnet-base: unknown text becomes [UNK], an ordinary token, and never <unk>."""
    tokenizer = sources.word_pieces(sources.folder_of(folder), [*sources.SPECIAL, "[UNK]"], ["<mask>"])
    return sources.save(folder, "MPNet", tokenizer, tokenizer.get_vocab_size())


def xlm_roberta(folder: Path, **changes: Any) -> Path:
    tokenizer, model = sources.pieces(sources.folder_of(folder))
    sources.save(folder, "XLMRoberta", tokenizer, tokenizer.get_vocab_size(), type_vocab_size=1, **changes)
    (folder / MODEL_FILE).write_bytes(model)
    return folder


def added_outside(folder: Path) -> Path:
    """Make a RoBERTa with more rows than tokens and <mask> outside of the tokenizer's model."""
    tokenizer = sources.byte_pairs(sources.folder_of(folder), sources.SPECIAL, ["<mask>"])
    return sources.save(folder, "Roberta", tokenizer, tokenizer.get_vocab_size() + 7)


def unigram(folder: Path) -> Path:
    """Make a CamemBERT with a unigram tokenizer.json alone and rows without tokens."""
    tokenizer, _ = sources.pieces(sources.folder_of(folder))
    return sources.save(folder, "Camembert", tokenizer, tokenizer.get_vocab_size() + 3, type_vocab_size=1)


def bert(folder: Path, family: str = "Bert", **changes: Any) -> Path:
    """Make a folder like bert-base, with WordPiece, its numbers and two token types."""
    tokenizer = sources.word_pieces(sources.folder_of(folder), sources.BERT_SPECIAL, [])
    sizes = {"pad_token_id": 0, "max_position_embeddings": 40, "layer_norm_eps": 1e-12, **changes}
    return sources.save(folder, family, tokenizer, tokenizer.get_vocab_size(), sources.BERT_NAMES, **sizes)


def distilbert(folder: Path) -> Path:
    return bert(folder, "DistilBert", dim=48, n_layers=2, n_heads=4, hidden_dim=96)


def electra(folder: Path) -> Path:
    return bert(folder, "Electra", embedding_size=48)


FOLDERS = {
    "roberta": sources.roberta_folder,
    "early": early_mask,
    "bert_vocabulary": bert_vocabulary,
    "mpnet": mpnet,
    "xlm_roberta": xlm_roberta,
    "outside": added_outside,
    "unigram": unigram,
    "modernbert": sources.modernbert_folder,
    "a_bert": bert,
    "distilbert": distilbert,
    "electra": electra,
}


@pytest.fixture(scope="module", params=FOLDERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Hugging Face folder and its import."""
    root = tmp_path_factory.mktemp(request.param)
    folder = FOLDERS[request.param](root / "source")
    import_model(folder, root / "imported")
    return folder, root / "imported"


def their_numbers(folder: Path, imported: Path) -> torch.Tensor:
    """Return the source's number for each of ours, found by the token's name, or by its place if it has none."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    dictionary = Dictionary.load(str(imported / "dict.txt"))
    numbers = tokenizer.get_vocab()
    names = ("cls", "pad", "sep", "unk")
    special = [numbers.get(s, getattr(tokenizer, f"{name}_token_id")) for s, name in zip(dictionary.symbols, names)]
    unnamed = [re.fullmatch(r"(?:madeupword|symbol)(\d{4})", symbol) for symbol in dictionary.symbols[4:]]
    ordinary = [int(n[1]) if n else numbers[symbol] for n, symbol in zip(unnamed, dictionary.symbols[4:])]
    return torch.tensor([*special, *ordinary, tokenizer.mask_token_id])


def test_logits_and_filled_masks_are_those_of_transformers(pair: tuple[Path, Path]) -> None:
    """Both sides give the same scores by token name, from text on, each with its tokenizer."""
    folder, imported = pair
    hub = MaelmModel.from_pretrained(str(imported))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    order = their_numbers(folder, imported)
    assert sorted(order.tolist()) == list(range(len(hub.dictionary)))
    best = hub.fill_mask(MASKED, topk=3)[0]
    for texts in ([TEXT], [MASKED, TEXT, "a"]):
        in_their_words = [text.replace("<mask>", tokenizer.mask_token) for text in texts]
        theirs = tokenizer(in_their_words, return_tensors="pt", padding=True, return_token_type_ids=False)
        ours = hub.encode_batch(texts)
        assert torch.equal(order[ours], theirs["input_ids"])
        with torch.no_grad():
            logits = model(**theirs).logits
            expected = logits[theirs["attention_mask"].bool()][:, order]
            actual = hub.model(ours)[0][ours.ne(1)]
        assert expected.std() > 0.1
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        for row in logits[theirs["input_ids"] == tokenizer.mask_token_id].softmax(dim=-1):
            assert [each.probability for each in best] == pytest.approx(row.topk(3).values.tolist(), rel=1e-4)


def test_text_survives(pair: tuple[Path, Path]) -> None:
    hub = MaelmModel.from_pretrained(str(pair[1]))
    text = "The sailor takes the rope."
    assert hub.decode(hub.encode(text)).lower() == text.lower()
    assert hub.decode(hub.encode(MASKED)).count("<mask>") == 1
    # Text that spells a special symbol is text.
    assert 2 not in hub.encode("a </s> b")[1:-1].tolist()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_old_files_shards_and_half_precision_are_read(half: torch.dtype, tmp_path: Path) -> None:
    """pytorch_model.bin in two shards and half precision gives the results of transformers in single precision."""
    folder = sources.roberta_folder(tmp_path / "source")
    state = {
        name: weight.to(half)
        for name, weight in transformers.AutoModelForMaskedLM.from_pretrained(folder).state_dict().items()
    }
    (folder / "model.safetensors").unlink()
    names, shards = sorted(state), ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    for shard, part in zip(shards, (names[::2], names[1::2])):
        torch.save({name: state[name].clone() for name in part}, folder / shard)
    index = {name: shards[number % 2] for number, name in enumerate(names)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert import_model(folder, tmp_path / "imported").agreements
    weights = torch.load(tmp_path / "imported" / CHECKPOINT_FILE, weights_only=True)["model"]
    expected = state["roberta.encoder.layer.1.output.dense.weight"].float()
    assert torch.equal(weights["encoder.layers.1.fc2.weight"], expected)


def test_berts_of_the_first_versions_are_read(tmp_path: Path) -> None:
    """They have TensorFlow's names of LayerNorm's weights and, as published, a head for the next sentence."""
    folder = bert(tmp_path / "source")
    config = transformers.AutoConfig.from_pretrained(folder)
    weights = transformers.BertForPreTraining(config).state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        weights = {each.replace(new, name): weight for each, weight in weights.items()}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]


def test_a_discriminator_is_imported_as_encoder(tmp_path: Path) -> None:
    folder = electra(tmp_path / "source")
    transformers.ElectraForPreTraining(transformers.AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states"]


def test_transformers_default_of_layer_norm_is_carried(tmp_path: Path) -> None:
    """The default of 1e-12 is used; embeddings are so small that 1e-5 would give other states."""
    folder = sources.roberta_folder(tmp_path / "source")
    weights = {
        name: tensor * (0.003 if "_embeddings.weight" in name else 1.0)
        for name, tensor in transformers.AutoModelForMaskedLM.from_pretrained(folder).state_dict().items()
        if not name.startswith("lm_head.decoder")
    }
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    sources.edit_config(folder, layer_norm_eps=None)
    imported = import_model(folder, tmp_path / "imported")
    assert imported.model_options[imported.model_options.index("--layer-norm-eps") + 1] == "1e-12"
    config = torch.load(tmp_path / "imported" / CHECKPOINT_FILE)["cfg"]["model"]
    assert config["layer_norm_eps"] == 1e-12
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    tokens = hub.encode(TEXT)[None]
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(folder).eval()(tokens).last_hidden_state
        torch.testing.assert_close(hub.extract_features(tokens), expected, rtol=0, atol=1e-5)
        for part in hub.model.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = 1e-5
        assert (hub.extract_features(tokens) - expected).abs().max() > 1e-3, "the number matters here"


def test_the_number_of_fairseqs_roberta_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq has no option for it, but a fork's model may have one number, or several."""
    from fairseq_maelm.interop.importing import fairseq_roberta

    checkpoint, honest = sources.fairseq_checkpoint(tmp_path / "source"), fairseq_roberta._model_options
    numbers = [1e-12]

    def of_a_fork(path: Path, model: Any) -> dict[str, Any]:
        for place, part in enumerate(each for each in model.modules() if isinstance(each, torch.nn.LayerNorm)):
            part.eps = numbers[place % len(numbers)]
        return honest(path, model)

    monkeypatch.setattr(fairseq_roberta, "_model_options", of_a_fork)
    words = import_model(checkpoint, tmp_path / "imported").model_options
    assert words[words.index("--layer-norm-eps") + 1] == "1e-12"
    numbers.append(1e-6)
    refused(checkpoint, tmp_path / "again", "different numbers to the variance")


def test_fairseq_roberta_is_imported(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    imported = import_model(checkpoint, tmp_path / "imported")
    # Our model omits padding and theirs does not, so matrix products have other shapes.
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"] and imported.reads_text
    assert max(each.difference for each in imported.agreements) < 2e-6
    theirs = sources.RobertaModel.from_pretrained(
        str(checkpoint.parent), "model.pt", str(checkpoint.parent), bpe="sentencepiece",
        sentencepiece_model=str(checkpoint.parent / MODEL_FILE),
    ).eval()  # fmt: skip
    ours = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    text = "The sailor takes the rope to the harbour."
    assert torch.equal(ours.encode(text), theirs.encode(text))
    with torch.no_grad():
        torch.testing.assert_close(ours.extract_features(ours.encode(text)), theirs.extract_features(ours.encode(text)))


def test_gpt2_pairs_of_fairseq_are_read(tmp_path: Path) -> None:
    """With encoder.json and vocab.bpe, as in roberta.base, text is encoded as by fairseq's code."""
    from fairseq.data.encoders.gpt2_bpe_utils import Encoder

    checkpoint = sources.gpt2_checkpoint(tmp_path / "source")
    import_model(checkpoint, tmp_path / "imported")
    dictionary = Dictionary.load(str(checkpoint.parent / "dict.txt"))
    merges = (checkpoint.parent / "vocab.bpe").read_text().split("\n")[1:-1]
    pieces = json.loads((checkpoint.parent / "encoder.json").read_text())
    encoder = Encoder(pieces, [tuple(each.split(" ")) for each in merges])
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    for text in (TEXT, "  two  spaces\tand a tab", "日本語 don't 1234"):
        expected = [dictionary.index(str(number)) for number in encoder.encode(text)]
        assert hub.encode(text).tolist() == [0, *expected, 2]


# Refusals


def refused(folder: Path, output: Path, match: str, data: Any = None) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        import_model(folder, output, data)
    assert not output.exists() and not list(output.parent.glob("*.unfinished"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_norm_eps": 0.5}, "layer_norm_eps is 0.5, not a number from 1e-14 to 0.01"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small', not a number"),
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new', but our encoder has 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"model_type": "roberta-prelayernorm"}, "LayerNorms are before"),
        ({"model_type": "t5"}, "model_type 't5' is not one of"),
        ({"pad_token_id": 2}, "padding is 1 in its tokenizer, but 2"),
        ({"num_hidden_layers": 3}, "weights lack encoder.layer.2"),
        ({"num_hidden_layers": 1}, "no place for 16 of its weights"),
    ],
)
def test_what_cannot_be_exact_is_refused(copied: Path, tmp_path: Path, changes: dict, match: str) -> None:
    refused(sources.edit_config(copied, **changes), tmp_path / "imported", match)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources.roberta_folder(tmp_path_factory.mktemp("roberta") / "source")


@pytest.fixture
def copied(roberta: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be changed."""
    return Path(shutil.copytree(roberta, tmp_path / "source"))


def test_other_buckets_of_mpnet_are_refused(tmp_path: Path) -> None:
    folder = sources.edit_config(mpnet(tmp_path / "source"), relative_attention_num_buckets=64)
    refused(folder, tmp_path / "imported", "relative_attention_num_buckets is 64")


def test_untied_and_missing_parts_are_refused(copied: Path, tmp_path: Path) -> None:
    state = transformers.AutoModelForMaskedLM.from_pretrained(copied).state_dict()
    (copied / "model.safetensors").unlink()
    refused(copied, tmp_path / "imported", "there are no weights")
    file, imported = copied / "pytorch_model.bin", tmp_path / "imported"
    torch.save({**state, "lm_head.decoder.weight": state["lm_head.decoder.weight"] + 1}, file)
    refused(copied, imported, "lm_head.decoder.weight differs")
    torch.save({"code": eval}, file)
    refused(copied, imported, "which is not plain data")
    torch.save(state, file)
    (copied / TOKENIZER_FILE).unlink()
    refused(copied, imported, "tokenizer")
    refused(tmp_path / "nothing", tmp_path / "imported", "there is no folder or checkpoint")


def test_a_model_is_downloaded_by_its_name(
    roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only with --download: settings, and weights in one of two formats."""
    import huggingface_hub

    asked: list[list[str]] = []

    def of_the_hub(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if name != "FacebookAI/roberta-base":
            raise OSError("404\nnot found")
        return str(roberta)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", of_the_hub)
    monkeypatch.chdir(tmp_path)
    words = ["import", "FacebookAI/roberta-base", "--output", "imported"]
    with pytest.raises(SystemExit, match="there is no folder or checkpoint FacebookAI/roberta-base: .* --download"):
        cli.main(words)
    with pytest.raises(
        SystemExit, match="FacebookAI/other cannot be downloaded from the Hugging Face Hub: 404 not found$"
    ):
        cli.main(["import", "FacebookAI/other", "--output", "imported", "--download"])
    assert list(tmp_path.iterdir()) == []
    cli.main([*words, "--download"])
    assert "masked-lm scores: largest difference" in capsys.readouterr().out
    assert json.loads((tmp_path / "imported" / FACTS_FILE).read_text())["source"] == "FacebookAI/roberta-base"
    assert asked[1:] == [["*.json", "*.txt", "*.model", "model*.safetensors"]]


def test_checkpoints_without_dictionary_or_of_other_models_are_refused(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source", activation_fn="relu")
    refused(checkpoint, tmp_path / "imported", "activation")
    (tmp_path / "source" / "dict.txt").rename(tmp_path / "dict.txt")
    refused(checkpoint, tmp_path / "imported", "there is no dict.txt")
    refused(checkpoint, tmp_path / "imported", "activation", tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"no checkpoint")
    refused(tmp_path / "bad.pt", tmp_path / "imported", "cannot be read as a checkpoint")
