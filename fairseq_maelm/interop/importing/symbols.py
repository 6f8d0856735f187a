"""Tokenizers for a dict.txt without sentencepiece model or byte pairs: a tokenizer.json next to it, or its symbols."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.interop.importing.huggingface_vocabulary import named_tokens, renumber, special_numbers
from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.text.dictionary import FILLER
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.tokenizer_file import open_tokenizer_file
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS, MASK_SYMBOL

LETTERS, WORDS = "letters", "words"
# Marks of parts of words, and the numbers of GPT-2's byte pairs: text must be cut by the tokenizer that made them.
_PART_OF_WORD = re.compile(r"\u2581.+|\u0120.+|##.+|.+@@|\d+")
_IN_BRACKETS = re.compile(r"<.+>|\[.+\]")
# Vocabularies of whole words have some tokens that look like parts of words.
_MOST_PARTS = 0.1


def kind_of_symbols(symbols: Sequence[str]) -> str | None:
    """Return how texts are cut into the symbols of dict.txt: ``LETTERS``, ``WORDS``, or None for parts of words."""
    ordinary = [symbol for symbol in symbols if not symbol.startswith(FILLER) and not _IN_BRACKETS.fullmatch(symbol)]
    if all(len(symbol) == 1 for symbol in ordinary):
        return LETTERS if ordinary else None
    parts = sum(bool(_PART_OF_WORD.fullmatch(symbol)) for symbol in ordinary)
    return WORDS if parts <= _MOST_PARTS * len(ordinary) else None


def symbol_tokenizer(dictionary: Dictionary, kind: str) -> str:
    """Return a tokenizer.json with the ids of a dictionary, whose symbols are separated by spaces or are letters.

    With ``LETTERS``, white space is ignored, and at each place the longest symbol is taken ("Cl" before "C").
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=FAIRSEQ_SYMBOLS[dictionary.unk()]))
    steps: list[Any] = [pre_tokenizers.WhitespaceSplit()]
    if kind == LETTERS:
        longer = [symbol for symbol in dictionary.symbols[dictionary.nspecial : -1] if len(symbol) > 1]
        longest_first = sorted(map(re.escape, longer), key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join([*longest_first, "."])), "isolated"))
        tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return with_special_tokens(tokenizer, dictionary)


def with_special_tokens(tokenizer: Any, dictionary: Dictionary) -> str:
    """Return the tokenizer.json of a tokenizer whose model has the special symbols, which it puts around texts."""
    from tokenizers import AddedToken, processors

    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", dictionary.eos()), ("<s>", dictionary.bos()), add_prefix_space=False
    )
    special = (*FAIRSEQ_SYMBOLS, MASK_SYMBOL)
    tokenizer.add_special_tokens(
        [AddedToken(symbol, lstrip=symbol == MASK_SYMBOL, normalized=False, special=True) for symbol in special]
    )
    return str(tokenizer.to_str())


def adjacent_tokenizer(folder: Path, dictionary: Dictionary) -> str:
    """Return the content of the folder's tokenizer.json with the dictionary's ids.

    Its tokens are symbols of the dictionary, or its ids are, as in dictionaries of GPT-2's byte pairs.
    """
    path = folder / TOKENIZER_FILE
    tokens = open_tokenizer_file(path).get_vocab(with_added_tokens=True)
    special = special_numbers(folder, tokens, named_tokens(folder), like_bert=False)
    ours = {number: dictionary.index(symbol) for symbol, number in special.items()}
    ordinary = {token: number for token, number in tokens.items() if number not in ours}
    by_name, by_number = (
        {token: token for token in ordinary},
        {token: str(number) for token, number in ordinary.items()},
    )
    for symbol_of in (by_number, by_name):
        missing = [token for token, symbol in symbol_of.items() if symbol not in dictionary.indices]
        if not missing:
            ours |= {ordinary[token]: dictionary.index(symbol) for token, symbol in symbol_of.items()}
            content = path.read_text("utf-8")
            return content if all(theirs == our for theirs, our in ours.items()) else renumber(content, ours, folder)
    raise refuse(
        folder,
        f"its {TOKENIZER_FILE} has {len(missing)} tokens that dict.txt lacks, such as {missing[0]!r}: take both files "
        "from one model, or give --symbols",
    )
