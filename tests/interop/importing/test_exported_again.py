"""A Hugging Face folder that is imported and exported again computes the same, with the same tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm import MaelmModel
from fairseq_maelm.interop.export import run as export_run
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.importing.run import CHECKPOINT_FILE, FACTS_FILE, import_model
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import TOKENIZER_FILE

from . import sources
from .sources import transformers
from .test_import import FOLDERS, MASKED, MOVED, TEXT, UNNAMED_ROWS

load_file = pytest.importorskip("safetensors.torch").load_file

# Source and format; only MPNet has the relative positions of the format mpnet.
CASES = [("roberta", "maelm"), ("early", "maelm"), ("bert_vocabulary", "maelm"), ("mpnet", "maelm"), ("mpnet", "mpnet")]
CASES += [("outside", "roberta"), ("unigram", "roberta"), ("modernbert", "modernbert"), ("a_bert", "bert")]
CASES += [("distilbert", "distilbert"), ("electra", "electra")]
# Short enough for the 40 positions of the sources.
TEXTS = [text for text in HARD_STRINGS if len(text.encode("utf-8")) < 30] + [TEXT, MASKED]


def there_and_back(source: Path, tmp_path: Path, form: str | None = "maelm", **settings: Any) -> Any:
    """Import a source into the folder imported, and export that into folder."""
    import_model(source, tmp_path / "imported")
    checkpoint = tmp_path / "imported" / CHECKPOINT_FILE
    return export(checkpoint, None, tmp_path / "folder", ExportSettings(form, **settings))


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def assert_equal_weights(source: Path, folder: Path, before: Any, after: Any) -> None:
    """Check that weights are equal bit by bit, rows of the vocabulary by the names of their tokens."""
    theirs, ours = (load_file(place / "model.safetensors") for place in (source, folder))
    # The row of token type 0 is a part of the positions.
    in_positions = ("position_embeddings.weight", "token_type_embeddings.weight")
    names = [name for name in theirs if not name.endswith(in_positions)]
    assert len(names) > 20 and set(names) == {name for name in ours if not name.endswith(in_positions)}
    tokens = sorted(before.get_vocab())
    for name in names:
        tables = theirs[name], ours[name]
        if len(theirs[name]) == len(theirs[word_embeddings(theirs)]):
            numbers = (tokenizer.convert_tokens_to_ids(tokens) for tokenizer in (before, after))
            tables = tuple(table[each] for table, each in zip(tables, numbers, strict=True))
        assert torch.equal(*tables), name


def word_embeddings(weights: dict[str, torch.Tensor]) -> str:
    return next(name for name in weights if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")))


@pytest.mark.parametrize(("kind", "form"), CASES, ids=lambda each: each)
def test_a_folder_comes_back_with_its_tokenizer(kind: str, form: str, tmp_path: Path) -> None:
    source = FOLDERS[kind](tmp_path / "source")
    imported, folder = tmp_path / "imported", tmp_path / "folder"
    # The format of the source's kind is the default.
    done = there_and_back(source, tmp_path, None if form != "maelm" else form)
    assert (done.content.format, done.content.architecture) == (form, "masked-lm")
    before, after = transformers.PreTrainedTokenizerFast.from_pretrained(source), tokenizer_of(folder)
    # If the source has other numbers, tokens are compared by their names.
    moved = json.loads((imported / FACTS_FILE).read_text())["vocabulary"]["moved"] > 0
    assert moved == (kind in MOVED)
    for text in TEXTS:
        text = text.replace("<mask>", before.mask_token)
        theirs, ours = before(text)["input_ids"], after(text)["input_ids"]
        assert after.convert_ids_to_tokens(ours) == before.convert_ids_to_tokens(theirs)
        assert moved or ours == theirs
    assert (after.mask_token, after.pad_token) == (before.mask_token, before.pad_token)
    assert after.unk_token == ("[UNK]" if kind == "mpnet" else before.unk_token)
    assert (after.bos_token_id, after.pad_token_id, after.eos_token_id) == (0, 1, 2)
    assert after.mask_token_id == len(load_dictionary(str(imported))) - 1
    if not moved:
        theirs, ours = (json.loads((place / TOKENIZER_FILE).read_text()) for place in (source, folder))
        assert {**theirs, "truncation": None, "padding": None} == ours

    import fairseq_maelm.hf  # noqa: F401

    texts = [each.replace("<mask>", before.mask_token) for each in (TEXT, MASKED, "a")]
    states = []
    for place, tokenizer in ((source, before), (folder, after)):
        model = transformers.AutoModel.from_pretrained(place).eval()
        batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        with torch.no_grad():
            states.append(model(**batch).last_hidden_state[batch["attention_mask"].bool()])
    assert states[0].std() > 0.1
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=1e-5)

    if done.content.format == json.loads((source / "config.json").read_text())["model_type"]:
        assert_equal_weights(source, folder, before, after)
    import_model(folder, tmp_path / "again")
    first, second = (torch.load(tmp_path / name / CHECKPOINT_FILE)["model"] for name in ("imported", "again"))
    assert first.keys() == second.keys()
    # Rows without a token are named after their numbers in the source, which differ here.
    other = {"_extra_state"} if kind in UNNAMED_ROWS else set()
    assert {name for name, tensor in first.items() if not torch.equal(tensor, second[name])} == other
    if not other:
        assert (tmp_path / "again" / "dict.txt").read_text() == (imported / "dict.txt").read_text()


def test_masks_are_filled_by_the_five_lines_of_the_card(tmp_path: Path) -> None:
    """The folder and its card keep the source's spelling of a mask."""
    there_and_back(FOLDERS["bert_vocabulary"](tmp_path / "source"), tmp_path, name=str(tmp_path / "folder"))
    card = (tmp_path / "folder" / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("\n```")[0]
    assert "The [MASK] is old." in code and "the ids of tokenizer.json and dict.txt" in card
    import fairseq_maelm.hf  # noqa: F401

    variables: dict[str, Any] = {}
    exec(code.replace(", trust_remote_code=True", ""), variables)
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    assert variables["word"].strip() == hub.fill_mask("The <mask> is old.", topk=1)[0][0].token


def test_text_is_read_as_the_source_reads_it_also_behind_a_space(tmp_path: Path) -> None:
    """A tokenizer with a space in front of text has add_prefix_space, or transformers 4 would remove the space."""
    tokenizer = sources.byte_pairs(sources.folder_of(tmp_path / "source"), sources.SPECIAL, ["<mask>"])
    tokenizer.pre_tokenizer = sources.tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    source = sources.save(tmp_path / "source", "Roberta", tokenizer, tokenizer.get_vocab_size())
    tokenizer.save(str(source / TOKENIZER_FILE))  # as it is: transformers 4 has taken the space away
    there_and_back(source, tmp_path)
    written = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert written["add_prefix_space"] is True
    expected = tokenizer.encode("the sailor").ids
    assert tokenizer_of(tmp_path / "folder")("the sailor")["input_ids"] == expected


def test_two_texts_are_joined_as_fairseq_does(tmp_path: Path) -> None:
    """fairseq, which may have fine-tuned the model, joins texts by two separators, and the source by one."""
    folder = FOLDERS["bert_vocabulary"](tmp_path / "source")
    import_model(folder, tmp_path / "imported")
    content = json.loads((tmp_path / "imported" / TOKENIZER_FILE).read_text())
    content["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 0]}
    (tmp_path / "imported" / TOKENIZER_FILE).write_text(json.dumps(content))
    export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "folder", ExportSettings("maelm"))
    tokenizer = tokenizer_of(tmp_path / "folder")
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the rope", "a sailor"))
    assert tokenizer("the rope", "a sailor")["input_ids"] == [0, *a, 2, 2, *b, 2]


def test_gpt2_pairs_of_fairseq_are_exported(tmp_path: Path) -> None:
    there_and_back(sources.gpt2_checkpoint(tmp_path / "source"), tmp_path)
    hub, tokenizer = MaelmModel.from_pretrained(str(tmp_path / "imported")), tokenizer_of(tmp_path / "folder")
    for text in (TEXT, "  two  spaces\tand a tab", "\u65e5\u672c\u8a9e don't 1234"):
        assert tokenizer(text)["input_ids"] == hub.encode(text).tolist()
    words = tokenizer("old ships", return_offsets_mapping=True)["offset_mapping"]
    assert not any("old ships"[start:end].startswith(" ") for start, end in words)


def test_another_tokenizer_than_the_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verification includes imported tokenizers: it finds a missing merge."""
    import_model(sources.roberta_folder(tmp_path / "source"), tmp_path / "imported")
    honest = export_run.tokenizer_files

    def forgetful(*arguments: Any) -> dict[str, str]:
        files = honest(*arguments)
        content = json.loads(files["tokenizer.json"])
        content["model"]["merges"].pop(3)
        return {**files, "tokenizer.json": json.dumps(content)}

    monkeypatch.setattr(export_run, "tokenizer_files", forgetful)
    checkpoint = tmp_path / "imported" / CHECKPOINT_FILE
    with pytest.raises(ValueError, match="texts differently from tokenizer.json and dict.txt"):
        export(checkpoint, None, tmp_path / "folder", ExportSettings("maelm"))
    assert not (tmp_path / "folder").exists()
    (tmp_path / "imported" / TOKENIZER_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="nor a tokenizer.json of `maelm import`"):
        export(checkpoint, None, tmp_path / "folder", ExportSettings("maelm"))
