"""Read SQuAD's JSON, versions 1.1 and 2.0, and find every answer in its context."""

import re
from collections.abc import Iterator
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files.atomic import parse_json
from fairseq_maelm.files.lines import damage_told, decompressed

# Problems of a question that do not stop preparation; they are counted, and listed by id in problems.json.
WRONG_OFFSET = "answers whose offset is wrong, found elsewhere in the context"
NOT_FOUND = "answers that are not in their context"
EMPTY_ANSWER = "empty answers, which can be neither found nor predicted"
EMPTY_QUESTION = "questions without text"
CONTRADICTION = "questions with an answer that are marked impossible: training follows the mark, scoring the answer"


class Question(NamedTuple):
    """A question with its answers."""

    identity: str  # unique in the file
    text: str
    context: int  # number of its context
    answers: list[str]  # the right answers as given; empty if there is no answer
    span: tuple[int, int] | None  # characters of the first answer found in the context, without white space around it
    impossible: bool  # whether training targets "no answer"


class SquadFile(NamedTuple):
    """A file of questions."""

    version: str  # "1.1" if every question has an answer and no field "is_impossible", otherwise "2.0"
    contexts: list[str]
    questions: list[Question]  # in the order of the file
    has_answers: bool  # whether the questions come with right answers; those of a test set do not
    problems: dict[str, list[str]]  # problem -> ids of the questions that have it


def read_squad(path: Path | str) -> SquadFile:
    """Read and check a file in SQuAD's layout, or with a question in each row of a list, of "data" or of JSON lines."""
    content = _content(Path(path))
    contexts: list[str] = []
    questions: list[Question] = []
    problems: dict[str, list[str]] = {}
    seen: set[str] = set()
    marked = answered = False
    for place, paragraph in _paragraphs(content, str(path)):
        context = _part(paragraph, "context", str, place)
        if not context.strip():
            raise ValueError(f"{place} has an empty context: remove the paragraph")
        for number, entry in enumerate(_part(paragraph, "qas", list, place), 1):
            question = _question(entry, context, len(contexts), f"{place}, question {number}", problems)
            if question.identity in seen:
                raise ValueError(
                    f"{path} has the id {question.identity!r} twice, the second time in {place}: give every question a "
                    "unique id"
                )
            seen.add(question.identity)
            marked |= "is_impossible" in entry
            answered |= "answers" in entry
            questions.append(question)
        contexts.append(context)
    if not questions:
        raise ValueError(f"{path} has no question")
    version = "2.0" if marked or (answered and not all(question.answers for question in questions)) else "1.1"
    return SquadFile(version, contexts, questions, answered, problems)


def find_answer(context: str, text: str, start: int) -> tuple[tuple[int, int] | None, bool]:
    """Find an answer in its context, at the offset ``start`` (-1 if unknown) or at the nearest match.

    Return the span without leading and trailing white space, or None; and whether ``start`` was right. An exact match
    is preferred to a match that ignores case and differences in white space.
    """
    blank = len(text) - len(text.lstrip())
    words = text.strip()
    if start >= 0 and context.startswith(text, start):
        return (start + blank, start + blank + len(words)), True
    places = [match.span() for match in re.finditer(re.escape(words), context)] or _loose_matches(context, words)
    return min(places, key=lambda span: abs(span[0] - blank - start), default=None), False


def _loose_matches(context: str, text: str) -> list[tuple[int, int]]:
    """Return the spans, without overlap, that equal a text except for case and white space, as ``re.IGNORECASE`` does.

    Time is linear, also in repeated words, where a regular expression would take the product of both lengths.
    """
    same: dict[str, str] = {}
    # Two characters are equal if their lower cases have the same upper case; "\u0130" has two lower-case characters.
    folded = {ord(each): same.setdefault(each.lower()[0].upper(), each) for each in sorted({*context, *text})}
    words = [match.span() for match in re.finditer(r"\S+", context)]
    wanted = " ".join(text.split()).translate(folded)
    joined = " ".join(context[begin:end] for begin, end in words).translate(folded)
    # The place in the context of each character of ``joined``.
    origins = [place for begin, end in words for place in range(begin, end + 1)]
    spans, place = [], joined.find(wanted)
    while place >= 0:
        spans.append((origins[place], origins[place + len(wanted) - 1] + 1))
        place = joined.find(wanted, place + len(wanted))
    return spans


def _content(path: Path) -> Any:
    with open(path, "rb") as stream, damage_told(path):
        data = decompressed(path, stream).read()
    first, _, rest = data.lstrip().partition(b"\n")
    if not (rest.strip() and first.rstrip().endswith(b"}")):
        return parse_json(data, path, strict=True)
    lines = enumerate(data.split(b"\n"), 1)
    return [parse_json(line, f"{path}:{number}", strict=True) for number, line in lines if line.strip()]


def _paragraphs(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    rows = content.get("data") if isinstance(content, dict) else content
    if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "question" in rows[0]:
        yield from _row_paragraphs(rows, path)
        return
    for number, article in enumerate(_part(content, "data", list, path), 1):
        place = f"{path}, article {number}"
        for count, paragraph in enumerate(_part(article, "paragraphs", list, place), 1):
            yield f"{place}, paragraph {count}", paragraph


def _row_paragraphs(rows: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the paragraphs of rows as `datasets` has them, with lists of an answer's parts in one field."""
    placed = [(f"{path}, row {number}", row) for number, row in enumerate(rows, 1)]
    for context, group in groupby(placed, lambda each: _part(each[1], "context", str, each[0])):
        own = list(group)
        yield own[0][0], {"context": context, "qas": [_listed_answers(row, place) for place, row in own]}


def _listed_answers(row: dict[str, Any], place: str) -> dict[str, Any]:
    answers = row.get("answers")
    if not isinstance(answers, dict):
        return row
    parts = zip_longest(_part(answers, "text", list, place), _part(answers, "answer_start", list, place))
    return {**row, "answers": [{"text": text, "answer_start": start} for text, start in parts]}


def _question(entry: Any, context: str, number: int, place: str, problems: dict[str, list[str]]) -> Question:
    identity, text = _part(entry, "id", str, place), _part(entry, "question", str, place)

    def note(problem: str) -> None:
        problems.setdefault(problem, []).append(identity)

    # Empty answers are kept, because for the official scorer their question has an answer.
    answers, spans = [], []
    for each in _part(entry, "answers", list, place) if "answers" in entry else []:
        answers.append(_part(each, "text", str, place))
        if not answers[-1].strip():
            note(EMPTY_ANSWER)
            continue
        start = each.get("answer_start")
        span, right = find_answer(context, answers[-1], start if isinstance(start, int) else -1)
        if not right:
            note(NOT_FOUND if span is None else WRONG_OFFSET)
        spans.append(span)
    marked = bool(entry.get("is_impossible", False))
    if not text.strip():
        note(EMPTY_QUESTION)
    if marked and answers:
        note(CONTRADICTION)
    located = next((span for span in spans if span is not None), None)
    return Question(identity, text, number, answers, located, marked or not answers)


def _part(record: Any, name: str, kind: Any, place: str) -> Any:
    if not isinstance(record, dict) or not isinstance(record.get(name), kind):
        what = "list" if kind is list else "text"
        raise ValueError(f"{place} has no {what} {name!r}: the file does not have SQuAD's layout")
    return record[name]
