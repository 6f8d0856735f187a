"""Make a small task from the texts of Python's ``help()``: which of six words is missing in a sentence?

``python gaps.py FOLDER`` writes train.tsv and valid.tsv with 16 sentences for each word, test.tsv with 100 from other
texts, and prompt.yaml. A row has the text before the gap, the text after it, and the word.
"""

import random
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

WORDS = ("the", "of", "and", "to", "is", "in")
SIZES = {"train": 16, "valid": 16, "test": 100}
_LEAST, _MOST = 8, 30  # words of a sentence


def gaps_in(text: str, draw: random.Random) -> list[tuple[str, str, str]]:
    """Return (text before, text after, word) for one gap in each sentence of a text."""
    found = []
    for sentence in re.split(r"(?<=[.:])\s|\n\s*\n", text):
        words = re.findall(r"[A-Za-z'-]+[,.:;]?", sentence)
        places = [place for place, word in enumerate(words[1:-1], 1) if word in WORDS]
        if places and _LEAST <= len(words) <= _MOST:
            place = draw.choice(places)
            found.append((" ".join(words[:place]), " ".join(words[place + 1 :]), words[place]))
    return found


def main(folder: Path) -> None:
    """Write the task."""
    draw = random.Random(1)
    titles = sorted(topics)
    draw.shuffle(titles)
    parts = {"test": titles[::2], "train": titles[1::2]}
    rows = {part: [row for title in own for row in gaps_in(topics[title], draw)] for part, own in parts.items()}
    rows["valid"] = rows["train"]
    folder.mkdir(parents=True)
    used: set[tuple[str, str, str]] = set()
    for split, size in SIZES.items():
        chosen = []
        for word in WORDS:
            own = [row for row in dict.fromkeys(rows[split]) if row[2] == word and row not in used]
            chosen += draw.sample(own, size)
        used.update(chosen)
        (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in chosen), encoding="utf-8")
    labels = ", ".join(f"{word}: {word}" for word in WORDS)
    prompt = f"template: '*cls**sent_0**mask**+sent_1**sep*'\nlabel_words: {{{labels}}}\n"
    (folder / "prompt.yaml").write_text(prompt, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
