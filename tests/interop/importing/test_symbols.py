"""Checkpoints of fairseq's RoBERTa from plugins, and vocabularies of letters, of words, and of a tokenizer.json."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from fairseq.models.roberta import base_architecture

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.hf import open_pretrained
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.interop.importing.symbols import adjacent_tokenizer, kind_of_symbols
from fairseq_maelm.text.vocabulary import MODEL_FILE, TOKENIZER_FILE

from . import sources
from .sources import transformers

PROTEIN, SEQUENCE = "ACDEFGHIKLMNPQRSTVWY", "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYW"


def of_symbols(folder: Path, symbols: list[str], **changes: Any) -> Path:
    """Write a checkpoint as of a plugin's architecture, with old names of weights, and these symbols in dict.txt."""
    path = sources.fairseq_checkpoint(folder)
    (folder / MODEL_FILE).unlink()
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    state = torch.load(path, weights_only=True)
    for name, weight in state["model"].items():
        if len(weight) == 197 + 5:
            state["model"][name] = torch.randn(len(symbols) + 5, *weight.shape[1:])
    old = {name.replace("layernorm_embedding", "emb_layer_norm"): weight for name, weight in state["model"].items()}
    state["model"] = {f"module.{name.replace('encoder.', 'decoder.', 1)}": weight for name, weight in old.items()}
    state["args"].arch, state["args"].task = "protein_small", "masked_lm"
    vars(state["args"]).update(changes)
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("symbols", "text", "pieces", "kind"),
    [
        (list(PROTEIN), "ACD <mask>WYB", ["A", "C", "D", "<mask>", "W", "Y", "<unk>"], None),
        (["C", "Cl", "(", ")", "=", "[nH]"], "CCl(=C)[nH]", ["C", "Cl", "(", "=", "C", ")", "[nH]"], "letters"),
        (["CCO", "ACG", "TTA"], "ACG <mask>  TTA ACGTTA", ["ACG", "<mask>", "TTA", "<unk>"], None),
    ],
)
def test_texts_are_cut_into_symbols_everywhere(
    symbols: list[str], text: str, pieces: list[str], kind: str | None, tmp_path: Path, capsys: Any
) -> None:
    """The commands and transformers give the same ids; the five commands work without any other file."""
    checkpoint = of_symbols(tmp_path / "source", symbols)
    imported, exported, lines = (
        tmp_path / "imported",
        tmp_path / "exported",
        "\n\n".join([text.replace("<mask>", "")] * 30),
    )
    (tmp_path / "texts.txt").write_text(f"{lines}\n")
    cli.main(["import", str(checkpoint), "--output", str(imported), *(["--symbols", kind] if kind else [])])
    common = ["--checkpoint", str(imported)]
    prepare = ["prepare", "corpus", str(tmp_path / "texts.txt"), "--valid-fraction", "0.1", "--workers", "1"]
    cli.main([*prepare, "--vocabulary", str(imported), "--output", str(tmp_path / "data")])
    cli.main(["score", str(tmp_path / "texts.txt"), *common, "--output", str(tmp_path / "scores")])
    cli.main(["export", *common, "--output", str(exported)])
    hub = MaelmModel.from_pretrained(str(imported))
    assert [hub.dictionary[token] for token in hub.encode(text)[1:-1]] == pieces
    tokenizer = open_pretrained("AutoTokenizer", exported)
    assert tokenizer(text)["input_ids"] == hub.encode(text).tolist()
    capsys.readouterr()
    cli.main(["fill", text if "<mask>" in text else f"{text}<mask>", *common, "--top", "1"])
    assert "mask 1" in capsys.readouterr().out


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"do_lower_case": True}])
def test_a_bert_of_letters_reads_them_with_and_without_spaces(settings: dict[str, Any], tmp_path: Path) -> None:
    """BERT's tokenizer needs spaces, and by default removes capitals; here and in both folders written, it does not."""
    source = sources.bert_of_tokens(tmp_path / "source", list(PROTEIN), **settings)
    imported, exported = tmp_path / "imported", tmp_path / "exported"
    cli.main(["import", str(source), "--output", str(imported)])
    cli.main(["export", "--checkpoint", str(imported), "--output", str(exported)])
    hub = MaelmModel.from_pretrained(str(imported))
    expected = [5 + PROTEIN.index(letter) for letter in SEQUENCE]
    spaced = " ".join(SEQUENCE)
    for text in (SEQUENCE, spaced):
        assert [hub.dictionary[token] for token in hub.encode(text)[1:-1]] == list(SEQUENCE)
        assert open_pretrained("AutoTokenizer", imported)(text)["input_ids"] == hub.encode(text).tolist()
        assert open_pretrained("AutoTokenizer", exported)(text)["input_ids"] == [2, *expected, 3]
    assert hub.decode(hub.encode(spaced)) == SEQUENCE
    assert hub.encode("AC[MASK]D").tolist() == hub.encode("A C <mask> D").tolist()
    own = transformers.BertTokenizer.from_pretrained(source, do_lower_case=False)
    assert own(spaced)["input_ids"] == [2, *expected, 3]
    masked = own(spaced.replace("C", "[MASK]"), return_tensors="pt")
    with torch.no_grad():
        logits = transformers.AutoModelForMaskedLM.from_pretrained(source).eval()(**masked).logits
    (filled,) = hub.fill_mask(SEQUENCE.replace("C", "<mask>"))
    place = masked["input_ids"][0].tolist().index(4)
    assert filled[0].token == [*sources.BERT_SPECIAL, *PROTEIN][int(logits[0, place].argmax())]


def test_a_bert_of_short_words_keeps_its_capitals(tmp_path: Path, caplog: Any) -> None:
    """Words between spaces need no other splitting; settings that would lose them are refused."""
    words = ["ATG", "TGC", "GCA"]
    source, text = sources.bert_of_tokens(tmp_path / "source", words), "ATG GCA TGC"
    for name, symbols in (("imported", None), ("words", "words")):
        hub = MaelmModel.from_pretrained(str(import_model(source, tmp_path / name, symbols=symbols).folder))
        assert [hub.dictionary[token] for token in hub.encode(text)[1:-1]] == text.split()
    assert "never find 3 of its 3 tokens, such as 'ATG': capitals are kept" in caplog.text
    source = sources.bert_of_tokens(tmp_path / "lower", words, do_lower_case=True)
    with pytest.raises(ValueError, match="lower cannot be imported .* never finds 3 of its 3 tokens, .* give --cased"):
        import_model(source, tmp_path / "refused")
    hub = MaelmModel.from_pretrained(str(import_model(source, tmp_path / "cased", cased=True).folder))
    assert [hub.dictionary[token] for token in hub.encode(text)[1:-1]] == text.split()


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        ([*"ACGT", "madeupword0000", "<null_1>"], "letters"),
        (["the", "##", "12", *(f"word{number}" for number in range(20))], "words"),
        (["13", "262", "318"], None),
        (["\u2581the", "\u2581a", "s"], None),
        (["sail@@", "or"], None),
        ([], None),
    ],
)
def test_the_dictionary_tells_what_its_symbols_are(symbols: list[str], kind: str | None) -> None:
    assert kind_of_symbols(symbols) == kind


@pytest.mark.parametrize("numbered", [False, True])
def test_an_adjacent_tokenizer_is_read(numbered: bool, tmp_path: Path) -> None:
    """The tokens of tokenizer.json are the symbols of dict.txt, or its ids are, in another order than its own."""
    folder = sources.roberta_folder(tmp_path / "source")
    tokenizer = sources.tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    ordinary = [token for token in sorted(tokenizer.get_vocab()) if token not in sources.NAMES.values()]
    symbols = [str(tokenizer.token_to_id(token)) if numbered else token for token in ordinary]
    checkpoint = of_symbols(tmp_path / "fairseq", symbols)
    for name in (TOKENIZER_FILE, "tokenizer_config.json"):
        shutil.copy(folder / name, checkpoint.parent / name)
    hub = MaelmModel.from_pretrained(str(import_model(checkpoint, tmp_path / "imported").folder))
    text = "The sailor takes the rope."
    expected = tokenizer.encode(text, add_special_tokens=False)
    named = [str(number) for number in expected.ids] if numbered else expected.tokens
    assert [hub.dictionary[token] for token in hub.encode(text)[1:-1]] == named
    assert hub.decode(hub.encode(text)) == text
    (checkpoint.parent / "dict.txt").write_text("a 1\nb 1\n")
    dictionary = Dictionary.load(str(checkpoint.parent / "dict.txt"))
    dictionary.add_symbol("<mask>")
    with pytest.raises(ValueError, match=r"tokenizer.json has \d+ tokens that dict.txt lacks"):
        adjacent_tokenizer(checkpoint.parent, dictionary)


def test_parts_of_words_need_their_tokenizer(tmp_path: Path, capsys: Any) -> None:
    checkpoint = of_symbols(tmp_path / "source", ["13", "262", "318"])
    cli.main(["import", str(checkpoint), "--output", str(tmp_path / "imported")])
    assert "text: the source has no tokenizer; put it next to dict.txt" in capsys.readouterr().out
    assert not (tmp_path / "imported" / TOKENIZER_FILE).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_attention_heads": None}, "must be a whole number"),
        ({"activation_fn": "relu"}, "computes different values"),
        ({"encoder_layers": 3}, "says encoder_layers 3, but holds weights of 2 layers"),
    ],
)
def test_options_and_not_the_name_decide(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        import_model(of_symbols(tmp_path / "source", list(PROTEIN), **changes), tmp_path / "imported")


def test_an_unknown_architecture_must_record_what_weights_do_not_show(tmp_path: Path) -> None:
    path = of_symbols(tmp_path / "source", list(PROTEIN))
    state = torch.load(path, weights_only=True)
    del state["args"].encoder_attention_heads
    torch.save(state, path)
    with pytest.raises(ValueError, match="does not record encoder_attention_heads, .* 'protein_small' is unknown"):
        import_model(path, tmp_path / "imported")
    state["model"] = {"encoder.layers.0.fc1.weight": torch.ones(2, 2)}
    torch.save(state, path)
    with pytest.raises(ValueError, match="its weights are not those of a RoBERTa; its model is 'protein_small'"):
        import_model(path, tmp_path / "imported")
    with pytest.raises(FileNotFoundError, match="no config.json in .*: give one of its checkpoints, model.pt"):
        import_model(path.parent, tmp_path / "imported")


def test_fairseq_still_opens_architectures_of_plugins(tmp_path: Path) -> None:
    """The package's check of names does not stop the source's own package in the same process."""
    if "protein_small" not in ARCH_MODEL_REGISTRY:
        register_model_architecture("roberta", "protein_small")(base_architecture)
    path = of_symbols(tmp_path / "source", list(PROTEIN))
    state = torch.load(path, weights_only=True)
    state["model"] = {name.removeprefix("module."): weight for name, weight in state["model"].items()}
    torch.save(state, path)
    ours = MaelmModel.from_pretrained(str(import_model(path, tmp_path / "imported").folder))
    (theirs,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(path.parent)})
    tokens = ours.encode(SEQUENCE)[None]
    with torch.no_grad():
        states = theirs.eval()(tokens, features_only=True)[0]
        torch.testing.assert_close(ours.extract_features(tokens), states, rtol=0, atol=1e-5)
