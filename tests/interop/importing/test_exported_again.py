"""A Hugging Face folder that is imported and exported again computes the same, with the same tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm.interop.export import run as export_run
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.importing.run import CHECKPOINT_FILE, import_model
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import SOURCE_FILE

from . import sources
from .sources import transformers
from .test_import import FOLDERS, MASKED, TEXT

safetensors = pytest.importorskip("safetensors.torch")
load_file, save_file = safetensors.load_file, safetensors.save_file

# Short enough for the 40 positions of the sources.
TEXTS = [text for text in HARD_STRINGS if len(text.encode("utf-8")) < 30] + [TEXT, MASKED]


def there_and_back(source: Path, tmp_path: Path, form: str | None = "maelm", **settings: Any) -> Any:
    """Import a source into the folder imported, and export that into folder."""
    import_model(source, tmp_path / "imported")
    checkpoint = tmp_path / "imported" / CHECKPOINT_FILE
    return export(checkpoint, None, tmp_path / "folder", ExportSettings(form, **settings))


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_source_comes_back_bit_by_bit(kind: str, tmp_path: Path) -> None:
    """Without training: weights with spare rows and token types, ids, the tokenizer's files and config.json."""
    source, folder = FOLDERS[kind](tmp_path / "source"), tmp_path / "folder"
    done = there_and_back(source, tmp_path, None)
    assert done.content.architecture == "masked-lm"
    before, after = weights_of(source), weights_of(folder)
    assert before.keys() == after.keys() and len(before) > 20
    assert not [name for name, weight in before.items() if not torch.equal(weight, after[name])]
    files = {path.name for path in source.iterdir()} - {"model.safetensors", "generation_config.json"}
    assert {"config.json", TOKENIZER_FILE, "tokenizer_config.json"} <= files
    assert not [name for name in files if (folder / name).read_bytes() != (source / name).read_bytes()]


@pytest.mark.parametrize("kind", FOLDERS)
def test_with_our_ids_it_computes_the_same(kind: str, tmp_path: Path) -> None:
    """The format maelm, or a stock one without the source's files, has our ids and a tokenizer with them."""
    source, folder, imported = FOLDERS[kind](tmp_path / "source"), tmp_path / "folder", tmp_path / "imported"
    import_model(source, imported)
    (imported / SOURCE_FILE).unlink()
    done = export(imported / CHECKPOINT_FILE, None, folder, ExportSettings())
    # The checkpoint itself knows the kind of its source.
    assert done.content.format == json.loads((source / "config.json").read_text())["model_type"]
    before, after = transformers.PreTrainedTokenizerFast.from_pretrained(source), tokenizer_of(folder)
    for text in TEXTS:
        text = text.replace("<mask>", before.mask_token)
        theirs, ours = before(text)["input_ids"], after(text)["input_ids"]
        assert after.convert_ids_to_tokens(ours) == before.convert_ids_to_tokens(theirs)
    assert (after.mask_token, after.pad_token) == (before.mask_token, before.pad_token)
    assert after.unk_token == ("[UNK]" if kind == "mpnet" else before.unk_token)
    assert (after.bos_token_id, after.pad_token_id, after.eos_token_id) == (0, 1, 2)
    assert after.mask_token_id == len(load_dictionary(str(imported))) - 1
    texts = [each.replace("<mask>", before.mask_token) for each in (TEXT, MASKED, "a")]
    states = []
    for place, tokenizer in ((source, before), (folder, after)):
        model = transformers.AutoModel.from_pretrained(place).eval()
        batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        with torch.no_grad():
            states.append(model(**batch).last_hidden_state[batch["attention_mask"].bool()])
    assert states[0].std() > 0.1
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=1e-5)


def test_trained_weights_come_back_in_the_order_of_the_source(tmp_path: Path) -> None:
    """Trained rows move to the ids of the source; token type 0 is taken off the trained positions."""
    source, imported = FOLDERS["a_bert"](tmp_path / "source"), tmp_path / "imported"
    import_model(source, imported)
    state = torch.load(imported / CHECKPOINT_FILE)
    for name in ("encoder.embed_tokens.weight", "encoder.embed_positions.weight", "lm_head.bias"):
        state["model"][name] += 0.25
    torch.save(state, imported / CHECKPOINT_FILE)
    export(imported / CHECKPOINT_FILE, None, tmp_path / "folder", ExportSettings())
    before, after = weights_of(source), weights_of(tmp_path / "folder")
    for name in ("bert.embeddings.word_embeddings", "bert.embeddings.position_embeddings"):
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 0.25, rtol=0, atol=1e-6)
    torch.testing.assert_close(after["cls.predictions.bias"], before["cls.predictions.bias"] + 0.25, rtol=0, atol=1e-6)
    types = "bert.embeddings.token_type_embeddings.weight"
    assert torch.equal(after[types], before[types]) and before[types].std() > 0.1


def test_files_of_another_source_or_damaged_ones_are_not_used(tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    import_model(FOLDERS["roberta"](tmp_path / "source"), imported)
    whole = load_file(imported / SOURCE_FILE)
    save_file({**whole, "vocabulary": whole["vocabulary"] + 1}, imported / SOURCE_FILE)
    assert load_with_model(imported / CHECKPOINT_FILE).source_files is None
    for change in ({"order": whole["order"] * 0}, {"file:../escape": whole["file:config.json"].clone()}):
        save_file({**whole, **change}, imported / SOURCE_FILE)
        with pytest.raises(ValueError, match=r"source_files.safetensors is damaged \(it has other content\)"):
            export(imported / CHECKPOINT_FILE, None, tmp_path / "folder", ExportSettings())


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
