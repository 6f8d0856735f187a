"""What published folders have besides an encoder and an LM head: heads, modules, added tokens, and odd settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import usage_error

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.interop.export.exporter import Export, ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.text.vocabulary import MODEL_FILE, TOKENIZER_FILE, open_encoder

from . import sources
from .sources import transformers

PAIR = ("The old ship.", "A rope is old.")
MODERN_CLASSIFIER = "ModernBertForSequenceClassification"
LABELS = {0: "no", 1: "maybe", 2: "yes"}


def there_and_back(source: Path, tmp_path: Path, **settings: Any) -> Export:
    import_model(source, tmp_path / "imported")
    return export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings(**settings))


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def with_head(folder: Path, kind: str, **settings: Any) -> Path:
    """Replace a folder's LM head by another one, with random weights."""
    config = transformers.AutoConfig.from_pretrained(folder, **settings)
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    return folder


def in_berts_own_form(folder: Path) -> Path:
    """Replace tokenizer.json by vocab.txt, from which transformers builds BERT's template with two token types."""
    numbers = json.loads((folder / TOKENIZER_FILE).read_text())["model"]["vocab"]
    (folder / TOKENIZER_FILE).unlink()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(numbers, key=numbers.get)))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    return folder


def test_a_classifier_of_pairs_comes_back_with_its_separators_and_labels(tmp_path: Path) -> None:
    kind = "BertForSequenceClassification"
    source = with_head(in_berts_own_form(sources.bert(tmp_path / "source")), kind, id2label=LABELS)
    done = there_and_back(source, tmp_path)
    scores = []
    for folder in (source, done.folder):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        assert type(model).__name__ == kind and model.config.id2label == LABELS
        for texts in ((PAIR[0],), PAIR):
            scores.append(model(**tokenizer_of(folder)(*texts, return_tensors="pt")).logits)
    for theirs, ours in ((scores[0], scores[2]), (scores[1], scores[3])):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (scores[0] - scores[1]).abs().max() > 0.01
    assert (done.folder / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_an_answering_model_comes_back_as_one(tmp_path: Path) -> None:
    done = there_and_back(with_head(sources.bert(tmp_path / "source"), "BertForQuestionAnswering"), tmp_path)
    assert done.target is not None and done.target.class_name == "BertForQuestionAnswering"


def test_labels_of_the_source_may_be_replaced_and_its_separators_lost(tmp_path: Path, caplog: Any) -> None:
    source = with_head(sources.roberta_folder(tmp_path / "source"), "RobertaForSequenceClassification", id2label=LABELS)
    (tmp_path / "names").write_text("bad\nfair\ngood\n")
    done = there_and_back(source, tmp_path, labels=tmp_path / "names")
    assert json.loads((done.folder / "config.json").read_text())["id2label"]["2"] == "good"
    assert "those of pairs are not" not in caplog.text
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "as_maelm", ExportSettings(format="maelm"))
    assert json.loads((done.folder / "config.json").read_text())["id2label"]["2"] == "yes"
    assert "those of pairs are not" in caplog.text


def test_a_bert_with_the_tokenizer_of_xlm_roberta(tmp_path: Path) -> None:
    """As multilingual-e5-small: padding is 1 in the tokenizer and 0 in the model, where nothing depends on it."""
    tokenizer, model = sources.pieces(sources.folder_of(tmp_path / "source"))
    source = sources.save(tmp_path / "source", "Bert", tokenizer, tokenizer.get_vocab_size() + 35, pad_token_id=0)
    (source / MODEL_FILE).write_bytes(model)
    done = there_and_back(source, tmp_path)
    batch = tokenizer_of(source)(["The old ship.", "A"], padding=True, return_tensors="pt")
    inside = batch["attention_mask"].bool()
    theirs, ours = (transformers.AutoModel.from_pretrained(place).eval() for place in (source, done.folder))
    assert torch.equal(theirs(**batch).last_hidden_state[inside], ours(**batch).last_hidden_state[inside])


def test_a_vocabulary_of_bert_may_contain_the_special_tokens_of_roberta(tmp_path: Path) -> None:
    source = in_berts_own_form(sources.bert(tmp_path / "source"))
    with (source / "vocab.txt").open("a") as file:
        file.write("<s>\n</s>\n<pad>\n<mask>\n")
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    model.resize_token_embeddings(model.config.vocab_size + 4)
    model.save_pretrained(source)
    import_model(source, tmp_path / "imported")
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    batch = tokenizer_of(source)(PAIR[0], return_tensors="pt")
    expected = transformers.AutoModel.from_pretrained(source).eval()(**batch).last_hidden_state
    torch.testing.assert_close(hub.extract_features(hub.encode(PAIR[0])), expected, rtol=0, atol=1e-5)


def test_a_unigram_tokenizer_without_a_type_and_with_padding_is_renumbered(tmp_path: Path) -> None:
    source = sources.unigram(tmp_path / "source")
    path = source / TOKENIZER_FILE
    content = json.loads(path.read_text())
    tokenizer = sources.tokenizers.Tokenizer.from_file(str(path))
    expected = tokenizer.encode(PAIR[0], add_special_tokens=False).tokens
    del content["model"]["type"]
    content["padding"] = {
        "strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
        "pad_token": "<pad>",
    }  # fmt: skip
    # Spare rows are in front of <mask>, so that its id changes.
    path.write_text(json.dumps(content))
    folder = import_model(source, tmp_path / "imported").folder
    written = json.loads((folder / TOKENIZER_FILE).read_text())
    assert written["padding"] is None
    assert len(open_encoder(folder).encode([PAIR[0]])[0]) == len(expected) + 1  # </s>


def test_a_tokenizer_written_in_python_is_refused(tmp_path: Path) -> None:
    source = sources.bert(tmp_path / "source")
    in_berts_own_form(source)
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "basic"}
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "subword_tokenizer_type": "wordpiece"}))
    with pytest.raises(ValueError, match="BertJapaneseTokenizer, is Python code that no tokenizer.json can replace"):
        import_model(source, tmp_path / "imported")


def test_a_tokenizer_that_transformers_cannot_open_is_told(tmp_path: Path, caplog: Any) -> None:
    source = sources.bert(tmp_path / "source")
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "unheard of"}
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, **sources.BERT_NAMES}))
    import_model(source, tmp_path / "imported")
    assert "transformers cannot open the tokenizer of" in caplog.text


@pytest.mark.parametrize("has_tokenizer_json", [False, True])
def test_a_cased_bert_without_settings_is_told_and_mended(
    has_tokenizer_json: bool, tmp_path: Path, caplog: Any
) -> None:
    """transformers reads BERT's texts in lower case by default, which settings of its own may want: --cased."""
    source = sources.bert(tmp_path / "source")
    content = (source / TOKENIZER_FILE).read_text()
    numbers = json.loads(content)["model"]["vocab"]
    chosen = [token for token in numbers if token.isalpha() and len(token) > 1][:30]
    if has_tokenizer_json:
        renamed = {token.capitalize() if token in chosen else token: number for token, number in numbers.items()}
        state = json.loads(content)
        state["model"]["vocab"] = renamed
        (source / TOKENIZER_FILE).write_text(json.dumps(state))
    else:
        in_berts_own_form(source)
        lines = (source / "vocab.txt").read_text().splitlines()
        (source / "vocab.txt").write_text("".join(f"{x.capitalize() if x in chosen else x}\n" for x in lines))
    (source / "tokenizer_config.json").unlink()
    import_model(source, tmp_path / "default")
    assert ("import it with --cased" if has_tokenizer_json else "capitals are kept, as with --cased") in caplog.text
    caplog.clear()
    word = chosen[-1].capitalize()
    checkpoint = import_model(source, tmp_path / "imported", cased=True).folder / CHECKPOINT_FILE
    assert "--cased" not in caplog.text
    ours = [MaelmModel.from_pretrained(str(tmp_path / name)) for name in ("default", "imported")]
    found = [word in [hub.dictionary[token] for token in hub.encode(word)] for hub in ours]
    assert found == [not has_tokenizer_json, True]
    done = export(checkpoint, None, tmp_path / "out", ExportSettings())
    assert tokenizer_of(done.folder).tokenize(word) == [word]


def one_separator(folder: Path, pooling: str = "cls") -> Path:
    """Make a classifier whose tokenizer joins two texts like ModernBERT's: [CLS] a [SEP] b [SEP]."""
    with_head(sources.modernbert_folder(folder, classifier_pooling=pooling), MODERN_CLASSIFIER, id2label=LABELS)
    state = json.loads((folder / TOKENIZER_FILE).read_text())
    (pair := state["post_processor"]["pair"]).remove(pair[2])
    (folder / TOKENIZER_FILE).write_text(json.dumps(state))
    return folder


def of_bert(folder: Path) -> Path:
    return with_head(in_berts_own_form(sources.bert(folder)), "BertForSequenceClassification", id2label=LABELS)


def of_means(folder: Path) -> Path:
    return one_separator(folder, "mean")


@pytest.mark.parametrize("make", [one_separator, of_means, of_bert])
def test_an_imported_classifier_reads_pairs_as_its_source(make: Any, tmp_path: Path, caplog: Any, capsys: Any) -> None:
    """Our own fine-tuning of an imported encoder keeps two separators; token types other than 0 are told."""
    source = make(tmp_path / "source")
    hub = MaelmModel.from_pretrained(str(import_model(source, tmp_path / "imported").folder))
    theirs, ours = (tokenizer_of(place)(*PAIR)["input_ids"] for place in (source, tmp_path / "imported"))
    assert hub.encode(*PAIR).tolist() == ours and len(theirs) == len(ours)
    assert len(hub.encode(*PAIR, max_length=9)) == 9
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    expected = model(**tokenizer_of(source)(*PAIR, return_tensors="pt")).logits.detach()
    found = hub.predict("sentence_classification_head", hub.encode(*PAIR), return_logits=True).detach()
    assert ("another token type" in caplog.text) == (make is of_bert)
    assert torch.allclose(found, expected, atol=1e-5) == (make is not of_bert)
    again = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "again", ExportSettings()).folder
    model = transformers.AutoModelForSequenceClassification.from_pretrained(again).eval()
    assert torch.equal(model(**tokenizer_of(again)(*PAIR, return_tensors="pt")).logits, expected)
    refused = usage_error(capsys, ["predict", str(source / "config.json"), "--checkpoint", str(tmp_path / "imported")])
    assert "is the import of a fine-tuned checkpoint: give --prompt" in refused
    if make is of_means:
        config = (source / "config.json").read_text()
        (source / "config.json").write_text(
            config.replace('"classifier_pooling": "mean"', '"classifier_pooling": "max"')
        )
        with pytest.raises(ValueError, match="classifier_pooling is 'max', not one of cls, mean"):
            import_model(source, tmp_path / "refused")
    hub.model.classification_heads.clear()
    del hub._separators
    assert hub.encode(*PAIR).tolist().count(hub.dictionary.eos()) == 3
