"""The whole preparation: equal to fairseq's own tools, split by document, repeatable, and it refuses bad requests."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from fairseq_maelm.corpus import CorpusError, prepare, read_documents, steps
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.text.vocabulary import dictionary_text, load_sentencepiece

from .texts import (
    DOCUMENTS,
    as_text,
    contents,
    decoded_documents,
    flat,
    make_documents,
    normalized,
    settings_for,
    train_model,
    write_text,
)


def preprocess(folder: Path, data: Path, name: str, documents: list[list[str]], workers: int) -> Path:
    """Encode documents into pieces with sentencepiece and binarize them with fairseq's command."""
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


def test_documents_are_kept_whole_and_each_goes_to_one_place(folder: Path) -> None:
    prepared = prepare(settings_for(folder, shards=3, valid_documents=20))
    assert prepared.data_argument.split(":") == [str(path) for path in prepared.folders]
    valid = decoded_documents(prepared.folders[0], "valid")
    trains = [decoded_documents(path, "train") for path in prepared.folders]
    assert len(valid) == 20
    assert sorted(itertools.chain(valid, *trains)) == sorted(normalized(DOCUMENTS))
    for train in trains:
        # Within a dataset, documents keep the corpus's order.
        order = [normalized(DOCUMENTS).index(document) for document in train]
        assert order == sorted(order)
        assert len(order) > 20
    names = sorted(path.name for path in (folder / "data").iterdir())
    assert names == ["manifest.json", "shard00", "shard01", "shard02"]
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
    (entry,) = manifest["files"]["inputs"]
    assert entry["sha256"] == sha256_of(folder / "text.txt")
    assert manifest["counts"]["valid"]["documents"] == 12
    paragraphs = flat(DOCUMENTS)
    totals = {name: sum(counts[name] for counts in manifest["counts"].values()) for name in manifest["counts"]["train"]}
    assert totals["documents"] == len(DOCUMENTS)
    assert totals["paragraphs"] == len(paragraphs)
    assert totals["characters"] == sum(map(len, paragraphs))
    assert totals["bytes"] == sum(len(paragraph.encode()) for paragraph in paragraphs) > totals["characters"]
    assert totals["unknown_tokens"] == totals["paragraphs_without_tokens"] == 0
    assert manifest["counts"]["train"]["tokens"] == (folder / "data" / "train.bin").stat().st_size // 2
    assert manifest["outputs"].keys() | {"manifest.json"} == {path.name for path in (folder / "data").iterdir()}
    assert manifest["settings"]["valid_fraction"] == 0.1
    assert manifest["vocabulary"] == {"dictionary_symbols": 121, "dictionary_symbols_with_mask": 122}
    assert manifest["seconds"].keys() == {"clean", "vocabulary", "encode", "binarize"}
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
    assert (folder / "data" / "sentencepiece.bpe.model").read_bytes() == model.read_bytes()
    theirs = preprocess(folder, folder / "data", "valid", list(read_documents(folder / "valid.txt")), workers=1)
    assert (folder / "data" / "valid.bin").read_bytes() == (theirs / "train.bin").read_bytes()


@pytest.mark.parametrize("option", ["sentencepiece_model", "vocabulary"])
def test_a_vocabulary_that_no_export_takes_is_named_first(
    option: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = folder / "own" / "sentencepiece.bpe.model"
    model.parent.mkdir()
    model.write_bytes(train_model(flat(DOCUMENTS), remove_extra_whitespaces=False))
    (model.parent / "dict.txt").write_text(dictionary_text(load_sentencepiece(model)), encoding="utf-8")
    given = {"sentencepiece_model": model} if option == "sentencepiece_model" else {"vocabulary": model.parent}
    prepare(settings_for(folder, vocabulary_size=None, **given))
    first = next(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert first.startswith(f"`maelm export` will refuse {model}, except with --format fairseq: its options of white")


def test_the_vocabulary_is_trained_on_the_training_split_only(folder: Path) -> None:
    write_text(folder / "valid.txt", [["qqqq zzzz " * 500]])
    prepare(settings_for(folder, valid=(folder / "valid.txt",), sample_megabytes=1), allow_unknown=True)
    assert "q" not in (folder / "data" / "dict.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("role", ["the inputs", "--valid"])
def test_a_file_without_blank_lines_is_one_document_and_told_so(
    role: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines, documents = "\n".join(flat(make_documents(99, seed=1))), as_text(make_documents(9))
    for name, of_role in (("text.txt", "the inputs"), ("valid.txt", "--valid")):
        (folder / name).write_text(lines if of_role == role else documents, encoding="utf-8")
    prepare(settings_for(folder, valid=(folder / "valid.txt",)))
    (told,) = [record.getMessage() for record in caplog.records if "blank line" in record.getMessage()]
    assert told.startswith(f"{role}: no input has a blank line, so each file is one document: give --line-documents")


def test_duplicates_are_dropped_within_and_across_chunks_and_first_from_training(folder: Path) -> None:
    write_text(folder / "valid.txt", DOCUMENTS[:3])
    # The last document goes on after its first paragraphs were dropped, and repeats its own.
    write_text(folder / "text.txt", [*DOCUMENTS, DOCUMENTS[4], [*DOCUMENTS[5], "Mara sole.", "Mara sole.", "Le."]])
    manifest = prepare(settings_for(folder, valid=(folder / "valid.txt",), deduplicate=True)).manifest
    dropped = sum(map(len, [*DOCUMENTS[:3], *DOCUMENTS[4:6]])) + 1
    assert manifest["duplicate_paragraphs_dropped"] == {"valid": 0, "inputs": dropped}
    assert decoded_documents(folder / "data", "valid") == normalized(DOCUMENTS[:3])
    assert decoded_documents(folder / "data", "train") == normalized([*DOCUMENTS[3:], ["Mara sole.", "Le."]])


def test_an_error_in_a_worker_reaches_the_user(folder: Path) -> None:
    with open(folder / "text.txt", "ab") as stream:
        stream.write(b"\xff\n")
    line = as_text(DOCUMENTS).count("\n") + 1
    with pytest.raises(CorpusError, match=rf"text\.txt:{line}: not valid UTF-8"):
        prepare(settings_for(folder, workers=2))


def test_an_output_inside_an_input_is_refused(folder: Path) -> None:
    with pytest.raises(CorpusError, match="is inside the input folder"):
        prepare(settings_for(folder, inputs=(folder,)))
