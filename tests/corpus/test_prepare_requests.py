"""Requests for a preparation: the same again, another for the same folder, and impossible ones."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.corpus import CorpusError, prepare

from .texts import DOCUMENTS, as_text, contents, settings_for, write_text


def test_the_same_request_again_does_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(settings_for(folder))
    before = {path: path.stat().st_mtime_ns for path in (folder / "data").iterdir()}
    caplog.set_level(logging.INFO)
    prepare(settings_for(folder, workers=2))
    assert "nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in (folder / "data").iterdir()} == before


def test_a_copy_of_the_same_text_counts_as_the_same_input(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(settings_for(folder))
    (folder / "elsewhere").mkdir()
    copy = Path(shutil.copy(folder / "text.txt", folder / "elsewhere" / "text.txt"))
    caplog.set_level(logging.INFO)
    prepare(settings_for(folder, inputs=(copy,)))
    assert "nothing to do" in caplog.text


OTHER_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 7}, "--seed was 1 and is now 7"),
    "fraction": ({"valid_fraction": 0.5}, "--valid-fraction was None and is now 0.5"),
    "duplicates": ({"deduplicate": True}, "--deduplicate was False and is now True"),
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


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({"inputs": ()}, "name at least one input"),
    "fraction 0": ({"valid_fraction": 0.0}, "--valid-fraction must be between 0 and 1"),
    "fraction 1": ({"valid_fraction": 1.0}, "--valid-fraction must be between 0 and 1"),
    "fraction rounds to none": ({"valid_fraction": 0.001}, "validation split is empty: the fraction 0.001 of 120"),
    "documents 0": ({"valid_documents": 0}, "--valid-documents must be at least 1"),
    "all documents": ({"valid_documents": 120}, "hold 120 documents .* 120 for validation leave none"),
    "two kinds of validation": (
        {"valid_fraction": 0.1, "valid_documents": 3},
        "--valid-fraction and --valid-documents exclude each other",
    ),
    "shards": ({"shards": 0}, "--shards must be between 1 and 100, not 0"),
    "more shards than documents": ({"shards": 100}, "120 documents are too few for 100 shards"),
    "workers": ({"workers": 0}, "--workers must be at least 1"),
    "preset": ({"preset": "titlecase"}, "--preset must be one of uncased, cased"),
    "size": ({"vocabulary_size": 3}, "--vocabulary-size must be at least 4"),
    "size too large": (
        {"vocabulary_size": 50_000},
        r"50000 pieces is too large for this text, which gives \d+ at most",
    ),
    "coverage": ({"character_coverage": 0.5}, "--character-coverage must be between 0.98 and 1.0"),
    "sample": ({"sample_megabytes": 0}, "--sample-megabytes must be at least 0.001"),
    "model and size": (
        {"sentencepiece_model": Path("m"), "vocabulary_size": 9},
        "--sentencepiece-model gives a vocabulary, so --vocabulary-size has no effect",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_refused(folder: Path, name: str) -> None:
    changes, message = BAD_REQUESTS[name]
    with pytest.raises(ValueError, match=message):
        prepare(settings_for(folder, **changes))
    assert not (folder / "data" / "manifest.json").exists()


def test_texts_without_documents_are_refused(folder: Path) -> None:
    (folder / "blank.txt").write_text("\n \n\u200b\n")
    with pytest.raises(CorpusError, match="the inputs hold no documents"):
        prepare(settings_for(folder, inputs=(folder / "blank.txt",)))
    with pytest.raises(CorpusError, match="validation split is empty: the files given with --valid"):
        prepare(settings_for(folder, output=folder / "b", valid=(folder / "blank.txt",)))


def test_a_file_is_read_for_one_purpose(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"text\.txt is among the inputs and --valid more than once"):
        prepare(settings_for(folder, valid=(folder / "text.txt",)))
    with pytest.raises(CorpusError, match="more than once"):
        prepare(settings_for(folder, inputs=(folder, folder / "text.txt"), output=folder.parent / "apart"))


def test_an_output_inside_an_input_is_refused(folder: Path) -> None:
    with pytest.raises(CorpusError, match="is inside the input folder"):
        prepare(settings_for(folder, inputs=(folder,)))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_reaches_the_user(folder: Path, workers: int) -> None:
    with open(folder / "text.txt", "ab") as stream:
        stream.write(b"\xff\n")
    line = as_text(DOCUMENTS).count("\n") + 1
    with pytest.raises(CorpusError, match=rf"text\.txt:{line}: not valid UTF-8"):
        prepare(settings_for(folder, workers=workers))
