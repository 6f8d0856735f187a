"""The whole preparation: equal to fairseq's own tools, split by document, repeatable, and it refuses bad requests."""

import hashlib
import itertools
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from fairseq_maelm.corpus import CorpusError, prepare, read_documents, steps
from fairseq_maelm.corpus.files import FolderLock

from .texts import (
    as_text,
    contents,
    decoded_documents,
    flat,
    make_documents,
    normalised,
    settings_for,
    train_model,
    write_text,
)

DOCUMENTS = make_documents(120)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that documents lie across them."""
    monkeypatch.setattr(steps, "CHUNK_BYTES", 3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the corpus text.txt."""
    write_text(tmp_path / "text.txt", DOCUMENTS)
    return tmp_path


def preprocess(folder: Path, data: Path, name: str, documents: list[list[str]], workers: int) -> Path:
    """What fairseq's own command makes of the text encoded by sentencepiece into pieces."""
    from fairseq import options
    from fairseq_cli import preprocess as command

    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "sentencepiece.bpe.model"))
    pieces = [[" ".join(processor.encode(text, out_type=str)) for text in document] for document in documents]
    (folder / f"{name}.pieces").write_text(as_text(pieces), encoding="utf-8")
    arguments = ["--only-source", "--srcdict", str(data / "dict.txt"), "--trainpref", str(folder / f"{name}.pieces")]
    arguments += ["--destdir", str(folder / f"by_fairseq_{name}"), "--workers", str(workers)]
    command.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder / f"by_fairseq_{name}"


@pytest.mark.parametrize(("workers", "preset"), [(1, "cased"), (2, "uncased")])
def test_equal_to_spm_encode_and_fairseq_preprocess(folder: Path, workers: int, preset: str) -> None:
    unusual = [["caf\u00e9 e\u0301\u00a0x", "\u6f22\u5b57 \u2581zo <mask> <pad>", "UPPER \u0130"], ["\U0001f600"]]
    write_text(folder / "text.txt", DOCUMENTS + unusual)
    write_text(folder / "valid.txt", make_documents(9, seed=1))
    settings = settings_for(folder, valid=(folder / "valid.txt",), preset=preset, workers=workers)
    prepared = prepare(settings)
    for split, name in (("train", "text"), ("valid", "valid")):
        documents = list(read_documents(folder / f"{name}.txt"))
        theirs = preprocess(folder, prepared.folders[0], name, documents, workers)
        for suffix in (".bin", ".idx"):
            assert (prepared.folders[0] / f"{split}{suffix}").read_bytes() == (theirs / f"train{suffix}").read_bytes()
        assert (prepared.folders[0] / "dict.txt").read_bytes() == (theirs / "dict.txt").read_bytes()


@pytest.mark.parametrize("shards", [1, 3])
def test_documents_are_kept_whole_and_each_goes_to_one_place(folder: Path, shards: int) -> None:
    prepared = prepare(settings_for(folder, shards=shards, valid_documents=20))
    assert prepared.data_argument.split(":") == [str(path) for path in prepared.folders]
    assert len(prepared.folders) == shards
    valid = decoded_documents(prepared.folders[0], "valid")
    trains = [decoded_documents(path, "train") for path in prepared.folders]
    assert len(valid) == 20
    assert sorted(itertools.chain(valid, *trains)) == sorted(normalised(DOCUMENTS))
    for train in trains:
        # Inside one dataset documents stand in the corpus's order.
        order = [normalised(DOCUMENTS).index(document) for document in train]
        assert order == sorted(order)
        assert len(order) > 60 / shards
    if shards > 1:
        assert sorted(path.name for path in (folder / "data").iterdir()) == [
            "manifest.json",
            *(f"shard{number:02d}" for number in range(shards)),
        ]
        assert [(path / "valid.bin").exists() for path in prepared.folders] == [True, False, False]
        assert all((path / "dict.txt").exists() and (path / "manifest.json").exists() for path in prepared.folders)


def test_the_result_depends_neither_on_workers_nor_on_chunks_but_on_the_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"shards": 2, "sample_megabytes": 0.01, "deduplicate": True}
    one = contents(prepare(settings_for(folder, **settings)).folders[0])
    two = contents(prepare(settings_for(folder, output=folder / "b", workers=2, **settings)).folders[0])
    assert two == one
    other = contents(prepare(settings_for(folder, output=folder / "d", seed=2, **settings)).folders[0])
    for name in ("train.bin", "valid.bin", "sentencepiece.bpe.model"):
        assert other[name] != one[name]
    monkeypatch.setattr(steps, "CHUNK_BYTES", 10**6)
    assert contents(prepare(settings_for(folder, output=folder / "c", **settings)).folders[0]) == one


def test_manifest_tells_what_was_made_of_what(folder: Path) -> None:
    manifest = prepare(settings_for(folder, valid_fraction=0.1)).manifest
    assert manifest == json.loads((folder / "data" / "manifest.json").read_text())
    text = (folder / "text.txt").read_bytes()
    (entry,) = manifest["files"]["inputs"]
    assert (entry["bytes"], entry["sha256"]) == (len(text), hashlib.sha256(text).hexdigest())
    assert manifest["counts"]["valid"]["documents"] == 12
    paragraphs = flat(DOCUMENTS)
    totals = {name: sum(counts[name] for counts in manifest["counts"].values()) for name in manifest["counts"]["train"]}
    assert totals["documents"] == len(DOCUMENTS)
    assert totals["paragraphs"] == len(paragraphs)
    assert totals["characters"] == sum(map(len, paragraphs))
    assert totals["bytes"] == sum(len(paragraph.encode()) for paragraph in paragraphs) > totals["characters"]
    assert totals["unknown_tokens"] == totals["paragraphs_without_tokens"] == 0
    assert manifest["counts"]["train"]["tokens"] == (folder / "data" / "train.bin").stat().st_size // 2
    for name, facts in manifest["outputs"].items():
        content = (folder / "data" / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["outputs"].keys() | {"manifest.json"} == {path.name for path in (folder / "data").iterdir()}
    assert manifest["settings"]["valid_fraction"] == 0.1
    assert manifest["vocabulary"] == {"dictionary_symbols": 121, "dictionary_symbols_with_mask": 122}
    assert manifest["seconds"].keys() == {"clean", "vocabulary", "encode", "binarise"}
    assert manifest["versions"]["sentencepiece"] == sentencepiece.__version__


def test_unknown_tokens_are_counted(folder: Path) -> None:
    model = folder / "m.model"
    text = flat(DOCUMENTS)
    model.write_bytes(train_model(text, character_coverage=1.0))
    write_text(folder / "valid.txt", [["\u6f22 \u5b57\u5b57", "fine"], ["\u0416"]])
    counts = prepare(settings_for(folder, valid=(folder / "valid.txt",), sentencepiece_model=model)).manifest["counts"]
    assert counts["valid"]["unknown_tokens"] == 3
    assert counts["train"]["unknown_tokens"] == 0


def test_a_paragraph_of_which_a_brought_model_leaves_nothing_is_a_blank_line_as_in_fairseq(folder: Path) -> None:
    (folder / "rules.tsv").write_text("2603\t\t# the snowman melts\n")
    model = folder / "m.model"
    model.write_bytes(train_model(flat(DOCUMENTS), normalization_rule_tsv=str(folder / "rules.tsv")))
    write_text(folder / "valid.txt", [["du", "\u2603", "fa\u2603"]])
    settings = settings_for(folder, valid=(folder / "valid.txt",), sentencepiece_model=model)
    assert prepare(settings).manifest["counts"]["valid"]["paragraphs_without_tokens"] == 1
    theirs = preprocess(folder, folder / "data", "valid", list(read_documents(folder / "valid.txt")), workers=1)
    assert (folder / "data" / "valid.bin").read_bytes() == (theirs / "train.bin").read_bytes()


def test_a_brought_model_is_used_as_it_is(folder: Path) -> None:
    model = folder / "mine.model"
    model.write_bytes(train_model(flat(DOCUMENTS), model_type="unigram"))
    prepare(settings_for(folder, sentencepiece_model=model))
    assert (folder / "data" / "sentencepiece.bpe.model").read_bytes() == model.read_bytes()


def test_the_vocabulary_is_trained_on_the_training_split_only(folder: Path) -> None:
    write_text(folder / "valid.txt", [["qqqq zzzz " * 500]])
    prepare(settings_for(folder, valid=(folder / "valid.txt",), sample_megabytes=1))
    assert "q" not in (folder / "data" / "dict.txt").read_text(encoding="utf-8")


def test_duplicates_are_dropped_and_counted(folder: Path) -> None:
    first, second = DOCUMENTS[:2]
    write_text(folder / "text.txt", [*DOCUMENTS, first, [*second, "Mara sole."]])
    manifest = prepare(settings_for(folder, deduplicate=True)).manifest
    assert manifest["duplicate_paragraphs_dropped"] == {"inputs": len(first) + len(second)}
    found = decoded_documents(folder / "data", "train") + decoded_documents(folder / "data", "valid")
    assert sorted(found) == sorted(normalised([*DOCUMENTS, ["Mara sole."]]))


def test_deduplication_drops_from_training_what_own_validation_files_hold(folder: Path) -> None:
    write_text(folder / "valid.txt", DOCUMENTS[:3])
    manifest = prepare(settings_for(folder, valid=(folder / "valid.txt",), deduplicate=True)).manifest
    assert manifest["duplicate_paragraphs_dropped"] == {"valid": 0, "inputs": sum(map(len, DOCUMENTS[:3]))}
    assert decoded_documents(folder / "data", "valid") == normalised(DOCUMENTS[:3])
    assert decoded_documents(folder / "data", "train") == normalised(DOCUMENTS[3:])


def test_the_same_request_again_does_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(settings_for(folder))
    before = {path: path.stat().st_mtime_ns for path in (folder / "data").iterdir()}
    (folder / "data" / "unfinished").mkdir()
    caplog.set_level(logging.INFO)
    again = prepare(settings_for(folder, workers=2))
    assert again.was_there
    assert "nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in (folder / "data").iterdir()} == before


def test_a_copy_of_the_same_text_counts_as_the_same_input(folder: Path) -> None:
    prepare(settings_for(folder))
    (folder / "elsewhere").mkdir()
    copy = Path(shutil.copy(folder / "text.txt", folder / "elsewhere" / "text.txt"))
    assert prepare(settings_for(folder, inputs=(copy,))).was_there


OTHER_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 7}, "--seed was 1 and is now 7"),
    "fraction": ({"valid_fraction": 0.5}, "--valid-fraction was None and is now 0.5"),
    "documents": ({"valid_documents": 6}, "--valid-documents was 5 and is now 6"),
    "size": ({"vocabulary_size": 121}, "--vocabulary-size was 120 and is now 121"),
    "preset": ({"preset": "cased"}, "--preset was 'uncased' and is now 'cased'"),
    "shards": ({"shards": 2}, "--shards was 1 and is now 2"),
    "duplicates": ({"deduplicate": True}, "--deduplicate was False and is now True"),
    "coverage": ({"character_coverage": 1.0}, "--character-coverage was 0.9995 and is now 1.0"),
    "sample": ({"sample_megabytes": 5}, "--sample-megabytes was 100.0 and is now 5"),
    "field": ({"json_field": "body"}, "--json-field was 'text' and is now 'body'"),
}


@pytest.mark.parametrize("name", OTHER_REQUESTS)
def test_another_request_for_the_same_folder_names_the_difference(finished: Path, name: str) -> None:
    changes, message = OTHER_REQUESTS[name]
    before = contents(finished / "data")
    with pytest.raises(CorpusError, match=message):
        prepare(settings_for(finished, **changes))
    assert contents(finished / "data") == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished preparation, not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    write_text(folder / "text.txt", DOCUMENTS)
    prepare(settings_for(folder))
    return folder


def test_changed_inputs_are_noticed(folder: Path) -> None:
    prepare(settings_for(folder))
    model = folder / "m.model"
    model.write_bytes(train_model(flat(DOCUMENTS)))
    with pytest.raises(CorpusError, match=r"--sentencepiece-model was None and is now 'm\.model'"):
        prepare(settings_for(folder, sentencepiece_model=model))
    write_text(folder / "more.txt", DOCUMENTS)
    with pytest.raises(CorpusError, match="inputs was 1 files and is now 2"):
        prepare(settings_for(folder, inputs=(folder / "text.txt", folder / "more.txt")))
    with pytest.raises(CorpusError, match=r"inputs had the file .*text\.txt and now has .*more\.txt"):
        prepare(settings_for(folder, inputs=(folder / "more.txt",)))
    write_text(folder / "text.txt", list(reversed(DOCUMENTS)))
    with pytest.raises(CorpusError, match=r"the file .*text\.txt was changed since"):
        prepare(settings_for(folder))


def test_a_damaged_result_is_noticed(folder: Path) -> None:
    prepare(settings_for(folder))
    (folder / "data" / "train.bin").unlink()
    with pytest.raises(CorpusError, match=r"train\.bin is missing or was changed"):
        prepare(settings_for(folder))


def test_an_output_folder_that_holds_something_else_is_left_alone(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(CorpusError, match=r"data holds something else \(thesis\.txt\)"):
        prepare(settings_for(folder))
    assert [path.name for path in (folder / "data").iterdir()] == ["thesis.txt"]
    (folder / "data" / "manifest.json").write_text("{}")
    with pytest.raises(CorpusError, match="was not written by `maelm prepare`"):
        prepare(settings_for(folder))
    (folder / "data" / "manifest.json").write_text("{")
    with pytest.raises(CorpusError, match=r"manifest\.json is damaged"):
        prepare(settings_for(folder))
    with pytest.raises(CorpusError, match=r"thesis\.txt exists and is not a folder"):
        prepare(settings_for(folder, output=folder / "data" / "thesis.txt"))


def test_two_runs_into_one_folder_are_kept_apart(folder: Path) -> None:
    (folder / "data" / "unfinished").mkdir(parents=True)
    with (
        FolderLock(folder / "data" / "unfinished" / "lock"),
        pytest.raises(CorpusError, match="another `maelm prepare` is writing to .*data;"),
    ):
        prepare(settings_for(folder))
    prepare(settings_for(folder))


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({"inputs": ()}, "name at least one input"),
    "fraction 0": ({"valid_fraction": 0.0}, "--valid-fraction must lie between 0 and 1"),
    "fraction 1": ({"valid_fraction": 1.0}, "--valid-fraction must lie between 0 and 1"),
    "fraction rounds to none": ({"valid_fraction": 0.001}, "validation split is empty: the fraction 0.001 of 120"),
    "documents 0": ({"valid_documents": 0}, "--valid-documents must be at least 1"),
    "all documents": ({"valid_documents": 120}, "hold 120 documents .* 120 for validation leave none"),
    "two kinds of validation": (
        {"valid_fraction": 0.1, "valid_documents": 3},
        "--valid-fraction and --valid-documents exclude each other",
    ),
    "shards": ({"shards": 0}, "--shards must lie in 1 ... 100"),
    "more shards than documents": ({"shards": 100}, "120 documents are too few for 100 shards"),
    "workers": ({"workers": 0}, "--workers must be at least 1"),
    "preset": ({"preset": "titlecase"}, "--preset must be one of uncased, cased"),
    "size": ({"vocabulary_size": 3}, "--vocabulary-size must be at least 4"),
    "size too large": (
        {"vocabulary_size": 50_000},
        r"50000 pieces is too large for this text, which gives \d+ at most",
    ),
    "coverage": ({"character_coverage": 0.5}, "--character-coverage must lie in 0.98 ... 1"),
    "sample": ({"sample_megabytes": 0}, "--sample-megabytes must be positive"),
    "model and size": (
        {"sentencepiece_model": Path("m"), "vocabulary_size": 9},
        "--sentencepiece-model brings a vocabulary, so --vocabulary-size has no use",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_refused(folder: Path, name: str) -> None:
    changes, message = BAD_REQUESTS[name]
    with pytest.raises(CorpusError, match=message):
        prepare(settings_for(folder, **changes))
    assert not (folder / "data" / "manifest.json").exists()


def test_texts_without_documents_are_refused(folder: Path) -> None:
    (folder / "blank.txt").write_text("\n \n\u200b\n")
    with pytest.raises(CorpusError, match="the inputs hold no documents"):
        prepare(settings_for(folder, inputs=(folder / "blank.txt",)))
    with pytest.raises(CorpusError, match="validation split is empty: the files given by --valid"):
        prepare(settings_for(folder, output=folder / "b", valid=(folder / "blank.txt",)))


def test_a_file_is_read_for_one_purpose(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"text\.txt is among the inputs and --valid more than once"):
        prepare(settings_for(folder, valid=(folder / "text.txt",)))
    with pytest.raises(CorpusError, match="more than once"):
        prepare(settings_for(folder, inputs=(folder, folder / "text.txt"), output=folder.parent / "apart"))


def test_an_output_inside_an_input_is_refused(folder: Path) -> None:
    with pytest.raises(CorpusError, match="lies inside the input folder"):
        prepare(settings_for(folder, inputs=(folder,)))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_reaches_the_user(folder: Path, workers: int) -> None:
    with open(folder / "text.txt", "ab") as stream:
        stream.write(b"\xff\n")
    line = as_text(DOCUMENTS).count("\n") + 1
    with pytest.raises(CorpusError, match=rf"text\.txt:{line}: not valid UTF-8"):
        prepare(settings_for(folder, workers=workers))


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_bad_model_is_refused_before_any_work(folder: Path, content: bytes) -> None:
    (folder / "bad.model").write_bytes(content)
    with pytest.raises(CorpusError, match=r"bad\.model is not a sentencepiece model"):
        prepare(settings_for(folder, sentencepiece_model=folder / "bad.model"))
    assert not (folder / "data").exists()
