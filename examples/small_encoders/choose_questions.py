#!/usr/bin/env python3
"""Write some questions of a SQuAD file, with their paragraphs and articles, as a SQuAD file of their own.

python choose_questions.py SOURCE TARGET [--answerable] [--first NUMBER]
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def answerable_questions(questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have an answer, without the mark of version 2.0: a file in which none has it is one of version 1.1."""
    return [
        {key: value for key, value in question.items() if key not in ("is_impossible", "plausible_answers")}
        for question in questions
        if question["answers"] and not question.get("is_impossible", False)
    ]


def choose(content: dict[str, Any], answerable: bool, number: int | None) -> dict[str, Any]:
    """Keep the first ``number`` questions, of the answerable ones if only they are wanted; None keeps all.

    Raises:
        ValueError: there are fewer.
    """
    kept, articles = 0, []
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            questions = answerable_questions(paragraph["qas"]) if answerable else paragraph["qas"]
            if number is not None:
                questions = questions[: number - kept]
            kept += len(questions)
            if questions:
                paragraphs.append({**paragraph, "qas": questions})
        if paragraphs:
            articles.append({**article, "paragraphs": paragraphs})
    if number is not None and kept < number:
        raise ValueError(f"there are only {kept:,} questions, and {number:,} are wanted")
    return {**content, "data": articles, **({"version": "1.1"} if answerable else {})}


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="some questions of a SQuAD file, as a SQuAD file of their own")
    parser.add_argument("source", type=Path, help="a SQuAD file")
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("--answerable", action="store_true", help="only those with an answer, as version 1.1 has them")
    parser.add_argument("--first", type=int, metavar="NUMBER", help="only so many, the first ones (default: all)")
    return parser.parse_args()


def main() -> None:
    """Read the questions and write those that are wanted."""
    arguments = read_arguments()
    try:
        content = json.loads(arguments.source.read_text(encoding="utf-8"))
        kept = choose(content, arguments.answerable, arguments.first)
        with arguments.target.open("x", encoding="utf-8") as target:
            json.dump(kept, target)
    except (OSError, ValueError) as error:
        raise SystemExit(f"choose_questions.py: {arguments.source}: {error}") from error


if __name__ == "__main__":
    main()
