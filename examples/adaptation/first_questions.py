#!/usr/bin/env python3
"""Write the first questions of a SQuAD file, with their paragraphs and articles, as a smaller SQuAD file.

python first_questions.py SOURCE NUMBER TARGET
"""

import json
import sys
from pathlib import Path
from typing import Any


def first_questions(content: dict[str, Any], number: int) -> dict[str, Any]:
    """Keep the first ``number`` questions.

    Raises:
        ValueError: there are fewer.
    """
    missing, articles = number, []
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            kept = paragraph["qas"][:missing]
            missing -= len(kept)
            if kept:
                paragraphs.append({**paragraph, "qas": kept})
        if paragraphs:
            articles.append({**article, "paragraphs": paragraphs})
    if missing:
        raise ValueError(f"there are only {number - missing:,} questions, and {number:,} are wanted")
    return {**content, "data": articles}


def main() -> None:
    """Read the command line and write the file."""
    source, number, target = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    try:
        kept = first_questions(json.loads(source.read_text(encoding="utf-8")), number)
    except ValueError as error:
        raise SystemExit(f"first_questions.py: {source}: {error}") from error
    target.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
