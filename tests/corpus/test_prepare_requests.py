"""Requests for a preparation that are impossible, and errors that reach the user."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.corpus import CorpusError, prepare

from .texts import DOCUMENTS, as_text, settings_for

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
