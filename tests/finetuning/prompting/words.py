"""A simple tokenizer: words and punctuation marks, with sentencepiece's mark for a space."""

import re
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.finetuning.prompting.prompts import Prompt, Prompter

# Words that this vocabulary has in pieces.
IN_PIECES = {"terrible": ("ter", "rible"), "wonderful": ("won", "der", "ful")}


class WordTokenizer:
    """Adds each new word of the Latin alphabet to its dictionary; other words are unknown."""

    def __init__(self, uncased: bool = False) -> None:
        self.dictionary = Dictionary()
        self.dictionary.add_symbol("<mask>")
        self.uncased = uncased

    def encode_part(self, text: str, starts_word: bool) -> list[int]:
        text = " ".join((text.lower() if self.uncased else text).split())
        text = (" " if starts_word else "") + text
        pieces = []
        for space, word in re.findall(r"(\s?)(\w+|[^\w\s])", text):
            first, *rest = IN_PIECES.get(word, (word,))
            pieces += [("\u2581" if space else "") + first, *rest]
        unknown = self.dictionary.unk()
        return [self.dictionary.add_symbol(piece) if piece.lstrip("\u2581").isascii() else unknown for piece in pieces]


def prompter_of(prompt: Prompt, uncased: bool = False, **options: Any) -> Prompter:
    """A prompter over ``WordTokenizer``."""
    tokenizer: Any = WordTokenizer(uncased)
    return Prompter(prompt, tokenizer, **options)


def shown(prompter: Prompter, *sentences: str) -> str:
    """The first sequence of an example as pieces with spaces between them."""
    return " ".join(prompter.tokenizer.dictionary[token] for token in prompter.encode(sentences)[0].tolist())
