"""The prepared folder: what it holds, what it reports and what stops it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text.vocabularies import KINDS

from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.finetuning.squad.prepare import (
    INSIDE_PIECES,
    NO_ANSWER,
    NOT_LOCATED,
    load_split,
    prepare_squad,
)
from fairseq_maelm.finetuning.squad.reading import NOT_FOUND
from fairseq_maelm.text.vocabulary import open_encoder

CONTEXT = "The Cat sat on  the MAT."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return KINDS["sentencepiece"](tmp_path / "data")


def write(path: Path, *questions: tuple[str, list[str] | None], context: str = CONTEXT) -> Path:
    asked: list[dict[str, Any]] = [{"id": f"q{number}", "question": text} for number, (text, _) in enumerate(questions)]
    for entry, (_, answers) in zip(asked, questions):
        if answers is not None:
            entry["answers"] = [{"text": text, "answer_start": context.find(text)} for text in answers]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}), encoding="utf-8")
    return path


def test_the_folder(data: Path, tmp_path: Path) -> None:
    valid = write(
        tmp_path / "dev.json", ("the mat", ["on  the MAT"]), ("a dog", []), ("ran", ["he C"]), ("ran", ["zebra"])
    )
    manifest = prepare_squad({"valid": valid}, data, tmp_path / "task")
    split = load_split(tmp_path / "task", "valid")
    assert [split.answer_text(question, *split.answers[question]) for question in (0, 2)] == ["on  the MAT", "The Cat"]
    assert split.answers[1].tolist() == [NO_ANSWER] * 2 and split.answers[3].tolist() == [NOT_LOCATED] * 2
    assert np.array_equal(split.question(1), open_encoder(data).encode(["a dog"])[0][:-1])
    assert split.texts.contexts == [CONTEXT] and split.texts.version == "2.0"
    assert split.texts.answers == [["on  the MAT"], [], ["he C"], ["zebra"]]

    facts = manifest["splits"]["valid"]
    assert (facts["questions"], facts["impossible"], facts["not_located"]) == (4, 1, 1)
    problems = json.loads((tmp_path / "task" / "problems.json").read_text())["valid"]
    assert problems == {NOT_FOUND: ["q3"], INSIDE_PIECES: ["q2"]}
    assert json.loads((tmp_path / "task" / "manifest.json").read_text()) == manifest
    for name, output in manifest["outputs"].items():
        assert sha256_of(tmp_path / "task" / name) == output["sha256"]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_come_back_exactly_from_every_kind_of_vocabulary(kind: str, tmp_path: Path) -> None:
    context = "The Cat\u2019s r\u00e9sum\u00e9 sat on  the MAT, \U0001f600 \u00bd a House."
    answers = ["The Cat\u2019s", "r\u00e9sum\u00e9 sat on  the MAT", "\U0001f600 \u00bd", "House"]
    valid = write(tmp_path / "dev.json", *((answer, [answer]) for answer in answers), context=context)
    (tmp_path / "data").mkdir()
    prepare_squad({"valid": valid}, KINDS[kind](tmp_path / "data"), tmp_path / "task")
    split = load_split(tmp_path / "task", "valid")
    assert split.answer_texts(*split.answers.T) == answers
    encoder = open_encoder(tmp_path / "task")
    assert np.array_equal(split.context(0, "tokens"), encoder.encode([context])[0][:-1])
    assert all(path.read_bytes() == (tmp_path / "data" / path.name).read_bytes() for path in encoder.files)


def test_questions_without_answers_are_a_test_set_and_nothing_else(data: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "test.json", ("the mat", None))
    with pytest.raises(ValueError, match="has no answers: only --test may lack them"):
        prepare_squad({"train": path}, data, tmp_path / "task")
    prepare_squad({"test": path}, data, tmp_path / "task")
    split = load_split(tmp_path / "task", "test")
    assert split.texts.answers is None and len(split) == 1
    with pytest.raises(FileNotFoundError, match="has no split 'valid', only test"):
        load_split(tmp_path / "task", "valid")


@pytest.mark.parametrize(
    ("context", "message"),
    [("\u2581 \u2581", "no text that an answer could be taken from"), (" ", "has an empty context")],
)
def test_contexts_with_nothing_to_find_stop_it(data: Path, tmp_path: Path, context: str, message: str) -> None:
    path = write(tmp_path / "dev.json", ("a", []), context=context)
    with pytest.raises(ValueError, match=message):
        prepare_squad({"valid": path}, data, tmp_path / "task")
    assert not (tmp_path / "task").exists()
