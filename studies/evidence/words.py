"""The words that the study takes from texts."""

from pathlib import Path

# Lines of a document in a text without blank lines.
DOCUMENT_LINES = 50


def take_words(path: Path, words: int, output: Path) -> None:
    """Copy lines from the beginning of a text, or of a folder of .txt files, until there are so many words.

    A file without blank lines is cut into documents of 50 lines. A text with fewer words is a ValueError.
    """
    taken = 0
    with open(output, "w", encoding="utf-8") as stream:
        for file in sorted(path.glob("*.txt")) if path.is_dir() else [path]:
            with open(file, encoding="utf-8") as lines:
                has_documents = any(not line.strip() for line in lines)
                lines.seek(0)
                for number, line in enumerate(lines):
                    if taken >= words:
                        break
                    taken += len(line.split())
                    ends = not has_documents and number % DOCUMENT_LINES == DOCUMENT_LINES - 1
                    stream.write(line + ("\n" if ends else ""))
            stream.write("\n")
    if taken < 0.98 * words:
        raise ValueError(f"{path} has {taken:,} words, but the plan needs {words:,}: give a longer text")
