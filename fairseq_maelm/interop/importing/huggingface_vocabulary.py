"""The vocabulary of a Hugging Face folder as a fairseq dictionary, and its tokenizer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.interop.importing.source import SourceVocabulary, refuse
from fairseq_maelm.interop.importing.tokenizer_json import renumber
from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import (
    FAIRSEQ_SYMBOLS,
    MASK_SYMBOL,
    MODEL_FILE,
    dictionary_symbols,
    load_sentencepiece,
)

# Rows of the table that no text leads to have names of this form, as in fairseq's own dictionaries.
FILLER = "madeupword"

# Our special symbols in order: the names of their roles in tokenizer_config.json, then how they are usually spelled.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "<s>": (("cls_token", "bos_token"), ("<s>", "[CLS]")),
    "<pad>": (("pad_token",), ("<pad>", "[PAD]")),
    "</s>": (("sep_token", "eos_token"), ("</s>", "[SEP]")),
    "<unk>": (("unk_token",), ("<unk>", "[UNK]")),
    MASK_SYMBOL: (("mask_token",), ("<mask>", "[MASK]")),
}


def read_vocabulary(folder: Path, rows: int, pad: int) -> SourceVocabulary:
    """Order the rows of a model's embedding table as a fairseq dictionary does.

    Where the folder already has <s>, <pad>, </s> and <unk> in front and <mask> at the end, as the RoBERTas and MPNet
    have them, every number stays. Text is encoded with the folder's sentencepiece model, or, where it has none, with
    its tokenizer.json, whose tokens get our numbers.

    Args:
        folder: of the model.
        rows: V, of the embedding table.
        pad: the model's number of the padding symbol.

    Raises:
        ValueError: if there is no tokenizer, it lacks a special symbol, or it does not belong to the model.
    """
    tokenizer = _open_tokenizer(folder)
    numbers: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if max(numbers.values()) >= rows:
        raise refuse(folder, f"its tokenizer has token {max(numbers.values())} and its model only {rows} embeddings")
    special = _special_numbers(folder, numbers)
    if special["<pad>"] != pad:
        raise refuse(folder, f"padding is {special['<pad>']} in its tokenizer and {pad} in its model")
    first, last = [special[symbol] for symbol in FAIRSEQ_SYMBOLS], special[MASK_SYMBOL]
    ordinary = [number for number in range(rows) if number not in special.values()]
    order = [*first, *ordinary, last]
    tokens = {number: token for token, number in numbers.items()}
    symbols = _symbols([(number, tokens.get(number)) for number in ordinary])
    if (folder / MODEL_FILE).is_file():
        symbols = _check_pieces(folder, symbols)
        files = {MODEL_FILE: (folder / MODEL_FILE).read_bytes()}
    else:
        number_of = {theirs: ours for ours, theirs in enumerate(order)}
        content = (folder / TOKENIZER_FILE).read_text("utf-8") if _has_json(folder) else tokenizer.to_str(pretty=True)
        if order != list(range(rows)):
            content = renumber(content, number_of, folder)
        files = {TOKENIZER_FILE: content.encode("utf-8")}
    return SourceVocabulary(order, symbols, files, _without_special(tokenizer))


def _has_json(folder: Path) -> bool:
    return (folder / TOKENIZER_FILE).is_file()


def _open_tokenizer(folder: Path) -> Any:
    if _has_json(folder):
        from tokenizers import Tokenizer

        # Not through transformers, which may take another class than the file's for a model of this kind.
        return Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    from fairseq_maelm.hf import open_pretrained

    try:
        return open_pretrained("AutoTokenizer", folder).backend_tokenizer
    except (ValueError, AttributeError) as error:  # the latter from tokenizers that are written in Python
        raise ValueError(
            f"transformers finds no tokenizer in {folder} ({error}): put {TOKENIZER_FILE} or {MODEL_FILE} there"
        ) from error


def _without_special(tokenizer: Any) -> Callable[[str], list[int]]:
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def tokenize(text: str) -> list[int]:
        numbers: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return numbers

    return tokenize


def _special_numbers(folder: Path, numbers: dict[str, int]) -> dict[str, int]:
    """Our special symbol -> the source's number."""
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            named |= json.loads((folder / name).read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for symbol, (roles, spellings) in _ROLES.items():
        given = [each["content"] if isinstance(each, dict) else each for each in map(named.get, roles)]
        candidates = [*given, *spellings]
        if symbol == "<unk>":
            # MPNet has both "<unk>", in its place, and "[UNK]" among the ordinary tokens, which its tokenizer uses.
            candidates = [symbol, *candidates]
        place = next((numbers[each] for each in candidates if each in numbers), None)
        if place is None:
            raise refuse(folder, f"its tokenizer has no {roles[0]}, which a fairseq dictionary needs as {symbol}")
        if place in found.values():
            other = next(name for name, number in found.items() if number == place)
            raise refuse(folder, f"its tokenizer has one token for {other} and {symbol}")
        found[symbol] = place
    return found


def _symbols(rows: Sequence[tuple[int, Optional[str]]]) -> list[str]:
    """Names of the ordinary symbols that dict.txt can hold: without white space, each once."""
    taken = {*FAIRSEQ_SYMBOLS, MASK_SYMBOL}
    symbols = []
    for number, token in rows:
        symbol = f"{FILLER}{number:04d}" if token is None else token
        if symbol.split() != [symbol] or symbol in taken:
            symbol = f"symbol{number:04d}"
        while symbol in taken:
            symbol += "_"
        taken.add(symbol)
        symbols.append(symbol)
    return symbols


def _check_pieces(folder: Path, symbols: list[str]) -> list[str]:
    """Name what is no piece of the sentencepiece model as a filler.

    Raises:
        ValueError: if a piece has no number in the source.
    """
    pieces = set(dictionary_symbols(load_sentencepiece(folder / MODEL_FILE)))
    missing = pieces.difference(symbols)
    if missing:
        raise refuse(folder, f"{len(missing)} pieces of {MODEL_FILE} have no number, such as {sorted(missing)[0]!r}")
    return [
        symbol if symbol in pieces or FILLER in symbol else f"{FILLER}_{place}" for place, symbol in enumerate(symbols)
    ]
