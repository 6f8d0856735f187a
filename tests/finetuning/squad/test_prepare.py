"""The prepared folder: what it holds, what it reports and what stops it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_maelm.files import sha256_of
from fairseq_maelm.finetuning.squad.prepare import INSIDE_PIECES, prepare_squad
from fairseq_maelm.finetuning.squad.prepared import NO_ANSWER, NOT_LOCATED, load_split
from fairseq_maelm.finetuning.squad.reading import NOT_FOUND

from .world import ALIGNER, PROCESSOR, SYMBOLS

CONTEXT = "The Cat sat on  the MAT."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(PROCESSOR.serialized_model_proto())
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in SYMBOLS[4:]), encoding="utf-8")
    return folder


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
    assert np.array_equal(split.question(1), ALIGNER.tokens(["a dog"])[0])
    assert split.texts.contexts == [CONTEXT] and split.texts.version == "2.0"
    assert split.texts.answers == [["on  the MAT"], [], ["he C"], ["zebra"]]

    facts = manifest["splits"]["valid"]
    assert (facts["questions"], facts["impossible"], facts["not_located"]) == (4, 1, 1)
    problems = json.loads((tmp_path / "task" / "problems.json").read_text())["valid"]
    assert problems == {NOT_FOUND: ["q3"], INSIDE_PIECES: ["q2"]}
    assert json.loads((tmp_path / "task" / "manifest.json").read_text()) == manifest
    for name, output in manifest["outputs"].items():
        assert sha256_of(tmp_path / "task" / name) == output["sha256"]


def test_questions_without_answers_are_a_test_set_and_nothing_else(data: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "test.json", ("the mat", None))
    with pytest.raises(ValueError, match="has no answers: give it as --test"):
        prepare_squad({"train": path}, data, tmp_path / "task")
    prepare_squad({"test": path}, data, tmp_path / "task")
    split = load_split(tmp_path / "task", "test")
    assert split.texts.answers is None and len(split) == 1
    with pytest.raises(FileNotFoundError, match="the name of one of its splits"):
        load_split(tmp_path / "task", "valid")


def test_what_an_interrupted_run_left_does_not_matter(data: Path, tmp_path: Path) -> None:
    (tmp_path / ".task.partial").mkdir()
    (tmp_path / ".task.partial" / "train.npz").write_bytes(b"half")
    prepare_squad({"valid": write(tmp_path / "dev.json", ("a", []))}, data, tmp_path / "task")
    assert not (tmp_path / "task" / "train.npz").exists() and not (tmp_path / ".task.partial").exists()


@pytest.mark.parametrize(
    ("context", "message"),
    [("\u2581 \u2581", "no character that could be an answer"), (" ", "has an empty context")],
)
def test_contexts_with_nothing_to_find_stop_it(data: Path, tmp_path: Path, context: str, message: str) -> None:
    path = write(tmp_path / "dev.json", ("a", []), context=context)
    with pytest.raises(ValueError, match=message):
        prepare_squad({"valid": path}, data, tmp_path / "task")
    assert not (tmp_path / "task").exists()


def test_a_vocabulary_that_does_not_fit_together_stops_it(data: Path, tmp_path: Path) -> None:
    lines = (data / "dict.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (data / "dict.txt").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="the two do not belong together"):
        prepare_squad({"valid": write(tmp_path / "dev.json", ("a", []))}, data, tmp_path / "task")
