"""Files in SQuAD's layout: what is taken, what is found again, what is reported and what is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairseq_maelm.finetuning.squad.reading import (
    CONTRADICTION,
    EMPTY_ANSWER,
    EMPTY_QUESTION,
    NOT_FOUND,
    WRONG_OFFSET,
    _loose_matches,
    find_answer,
    read_squad,
)

CONTEXT = "The red fox met a Red  Fox near the red fox's den."


def written(folder, *questions: dict[str, Any], context: str = CONTEXT):
    path = folder / "squad.json"
    content = {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def question(identity: str = "q", text: str = "Who?", **more: Any) -> dict[str, Any]:
    return {"id": identity, "question": text, **more}


def answer(text: str, start: int | None) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


@pytest.mark.parametrize(
    ("text", "start", "span", "right"),
    [
        ("red fox", 4, (4, 11), True),
        ("red fox", 36, (36, 43), True),
        ("red fox", 5, (4, 11), False),
        ("red fox", 30, (36, 43), False),  # the nearest
        ("RED FOX", 20, (18, 26), False),  # no such text: the nearest with these words
        (" fox ", 7, (8, 11), True),  # without the white space around it
        ("blue fox", 4, None, False),
        ("red fox", -1, (4, 11), False),
        ("den.", 46, (46, 50), True),
        ("den.", 99, (46, 50), False),
    ],
)
def test_answers_are_found(text, start, span, right):
    assert find_answer(CONTEXT, text, start) == (span, right)


@given(*[st.text(st.sampled_from("aAiIıİsSſßµμΣσςﬅﬆ.  \n\u00a0"), min_size=1)] * 2)
def test_loose_matches_are_those_of_a_regular_expression(context, text):
    assume(text.strip())
    pattern = r"\s+".join(map(re.escape, text.split()))
    expected = [match.span() for match in re.finditer(pattern, context, re.IGNORECASE)]
    assert _loose_matches(context, text.strip()) == expected


def test_every_letter_has_the_cases_of_a_regular_expression():
    letters = [chr(code) for code in range(0x110000) if chr(code).lower() != chr(code).upper()]
    context = " ".join(letters)
    for letter in letters[::29]:
        expected = [match.span() for match in re.finditer(re.escape(letter), context, re.IGNORECASE)]
        assert _loose_matches(context, letter) == expected, letter


def test_version_2(tmp_path):
    path = written(
        tmp_path,
        question("a", answers=[answer("red fox", 4)], is_impossible=False),
        question("b", answers=[], is_impossible=True),
    )
    source = read_squad(path)
    assert source.version == "2.0" and source.has_answers and not source.problems
    assert [(each.identity, each.impossible) for each in source.questions] == [("a", False), ("b", True)]


def test_version_1(tmp_path):
    answers = [answer("zebra", 1), answer("red fox", 4), answer("fox", 8)]
    source = read_squad(written(tmp_path, question("a", answers=answers)))
    assert source.version == "1.1"
    assert source.questions[0].answers == ["zebra", "red fox", "fox"]
    assert source.questions[0].span == (4, 11), "of the first that is there"


def test_a_test_set_has_no_answers(tmp_path):
    source = read_squad(written(tmp_path, question("a")))
    assert not source.has_answers and source.questions[0].answers == []


def test_what_is_wrong_with_questions_is_counted_and_nothing_is_dropped(tmp_path):
    path = written(
        tmp_path,
        question("moved", answers=[answer("red fox", 2)]),
        question("unknown", answers=[answer("red fox", None)]),
        question("absent", answers=[answer("zebra", 4)]),
        question("silent", text=" ", answers=[answer("den", 46)]),
        question("blank", answers=[answer(" ", 0)]),
        question("both", answers=[answer("red fox", 4)], is_impossible=True),
    )
    source = read_squad(path)
    assert len(source.questions) == 6
    assert source.problems == {
        WRONG_OFFSET: ["moved", "unknown"],
        NOT_FOUND: ["absent"],
        EMPTY_QUESTION: ["silent"],
        EMPTY_ANSWER: ["blank"],
        CONTRADICTION: ["both"],
    }
    assert source.questions[0].span == (4, 11)
    assert [each.impossible for each in source.questions] == [False, False, False, False, False, True]


FLAT = [
    {
        "id": "a",
        "title": "t",
        "context": CONTEXT,
        "question": "Who?",
        "answers": {"text": ["fox"], "answer_start": [8]},
    },
    {"id": "b", "title": "t", "context": CONTEXT, "question": "Why?", "answers": {"text": [], "answer_start": []}},
    {
        "id": "c",
        "title": "u",
        "context": "A den.",
        "question": "Where?",
        "answers": {"text": ["den"], "answer_start": [2]},
    },
]
LINES = "\n".join(map(json.dumps, FLAT))


@pytest.mark.parametrize("content", [LINES, json.dumps(FLAT), json.dumps({"data": FLAT}, indent=2)])
def test_rows_as_datasets_writes_them(tmp_path, content):
    path = tmp_path / "rows.json"
    path.write_text(content, encoding="utf-8")
    source = read_squad(path)
    assert source.version == "2.0" and source.contexts == [CONTEXT, "A den."] and not source.problems
    assert [each[0:1] + each[2:5] for each in source.questions] == [
        ("a", 0, ["fox"], (8, 11)), ("b", 0, [], None), ("c", 1, ["den"], (2, 5)),
    ]  # fmt: skip


ASKED = '{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "q", "question": "?", "answers": %s}]}]}]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [{"title": "t"}]}', "article 1 has no list 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": 5}]}]}]}', "question 1 has no text 'id'"),
        ('{"data": []}', "has no question"),
        (ASKED % "[3]", "'text'"),
        (LINES.replace('"context"', '"passage"'), "row 1 has no text 'context'"),
        (LINES.replace('"answer_start"', '"start"'), "row 1 has no list 'answer_start'"),
        (LINES + "\n{", "bad.json:4 is not JSON"),
    ],
)
def test_other_layouts_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_squad(path)


def test_an_id_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has the id 'q' twice"):
        read_squad(written(tmp_path, question(answers=[]), question(answers=[])))
