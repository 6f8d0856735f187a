"""Tokenizers that split text into the symbols of a vocabulary, tokenizer.json next to dict.txt, and repairs."""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.interop.importing.huggingface_vocabulary import (
    ROLES,
    SETTINGS,
    encode_of,
    named_tokens,
    open_source_tokenizer,
    ordinary_tokens,
    renumber,
    special_numbers,
)
from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.options import UsageError
from fairseq_maelm.text.dictionary import FILLER
from fairseq_maelm.text.tokenizer_file import open_tokenizer_file
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS, MASK_SYMBOL, TOKENIZER_FILE

logger = logging.getLogger(__name__)

LETTERS, WORDS = "letters", "words"
CUTS = {LETTERS: "which are letters", WORDS: "which spaces separate"}
# Marks of parts of words, and the numbers of GPT-2's byte pairs: text must be cut by the tokenizer that made them.
_PART_OF_WORD = re.compile(r"\u2581.+|\u0120.+|##.+|.+@@|\d+")
_IN_BRACKETS = re.compile(r"<.+>|\[.+\]")
# Vocabularies of whole words have some tokens that look like parts of words.
_MOST_PARTS = 0.1
# Shares of a vocabulary that its tokenizer may not find: some tokens of a sound one, and half of one for other text.
_FEW_LOST, _MOST_LOST = 0.05, 0.5


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
    from tokenizers import Tokenizer, models

    numbers = {symbol: number for number, symbol in enumerate(dictionary.symbols)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=FAIRSEQ_SYMBOLS[dictionary.unk()]))
    _split_into(tokenizer, dictionary.symbols[dictionary.nspecial : -1], kind)
    return with_special_tokens(tokenizer, dictionary)


def _split_into(tokenizer: Any, symbols: Sequence[str], kind: str) -> None:
    """Let a tokenizer split texts into symbols of one or more characters (``LETTERS``), or only at spaces."""
    from tokenizers import Regex, decoders, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.WhitespaceSplit()]
    if kind == LETTERS:
        longest_first = sorted((re.escape(symbol) for symbol in symbols if len(symbol) > 1), key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join([*longest_first, "."])), "isolated"))
        tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


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


@contextmanager
def readable_folder(
    folder: Path, files: dict[str, bytes], cased: bool, kind: str | None, like_bert: bool
) -> Iterator[Path]:
    """Yield a folder whose tokenizer finds its tokens in text: the source, or a copy of its files with repairs.

    Two traps are repaired: letters, such as amino acids, which BERT's tokenizer finds between spaces only, and a cased
    vocabulary without settings, which transformers reads in lower case.

    ``files`` are the source's config.json and tokenizer files, name -> content. ``cased`` keeps capitals and accents,
    which BERT's tokenizer may remove. ``kind`` is how text is split, ``LETTERS`` or ``WORDS``; None for the source's
    way, or ``LETTERS`` if it misses them. ``like_bert`` is as in ``special_numbers``.
    """
    repaired = _repaired(folder, files, cased, kind, like_bert)
    if not repaired:
        yield folder
        return
    with TemporaryDirectory() as place:
        for name, content in {**files, **repaired}.items():
            (Path(place) / name).parent.mkdir(exist_ok=True)
            (Path(place) / name).write_bytes(content)
        try:
            yield Path(place)
        except ValueError as error:
            raise type(error)(str(error).replace(place, str(folder))) from error


def _repaired(
    folder: Path, files: dict[str, bytes], cased: bool, kind: str | None, like_bert: bool
) -> dict[str, bytes]:
    """Return the files to replace, name -> content."""
    tokenizer = open_source_tokenizer(folder)
    tokens = ordinary_tokens(tokenizer)
    lost = _lost(tokenizer, tokens)
    kind = kind or _unread_letters(tokenizer, tokens)
    if kind is not None:
        logger.info("texts are split into the tokens of %s, %s; --symbols decides", folder, CUTS[kind])
        return _files_of_symbols(folder, tokenizer, kind, cased or bool(lost), like_bert)
    counts = f"{len(lost)} of its {len(tokens)} tokens, such as {ascii(lost[0])}" if lost else ""
    has_settings = TOKENIZER_FILE in files or "do_lower_case" in named_tokens(folder)
    if lost and not cased and not has_settings:
        logger.warning(
            "the tokenizer of %s has no settings, and by default would read text in lower case and never find %s: "
            "capitals are kept, as with --cased",
            folder, counts,
        )  # fmt: skip
        cased = True
    if cased:
        return _files_with_capitals(folder, files)
    if lost:
        message = f"its tokenizer reads text in lower case, as its settings say, and never finds {counts}"
        if len(lost) > _MOST_LOST * len(tokens):
            raise refuse(folder, f"{message}: if the model is cased, give --cased")
        logger.warning("%s: %s; if the model is cased, import it with --cased", folder, message)
    return {}


def _lost(tokenizer: Any, tokens: dict[str, int]) -> list[str]:
    """Return the tokens with characters that reading in lower case removes, unless they are few."""
    normalizer = tokenizer.normalizer
    if normalizer is None or normalizer.normalize_str("A") != "a":
        return []
    texts = tokenizer.decode_batch([[number] for number in tokens.values()], skip_special_tokens=False)
    lost = [
        token
        for token, text in zip(tokens, texts, strict=True)
        if not set("".join(text.split())) <= set(normalizer.normalize_str(text))
    ]
    return lost if len(lost) > _FEW_LOST * len(tokens) else []


def _unread_letters(tokenizer: Any, tokens: dict[str, int]) -> str | None:
    """Return ``LETTERS`` if all tokens are letters that the tokenizer does not find side by side."""
    if type(tokenizer.model).__name__ not in ("WordPiece", "WordLevel") or kind_of_symbols(list(tokens)) != LETTERS:
        return None
    letters = {token: number for token, number in tokens.items() if len(token) == 1}
    return None if encode_of(tokenizer)("".join(letters)) == list(letters.values()) else LETTERS


def _files_of_symbols(folder: Path, tokenizer: Any, kind: str, cased: bool, like_bert: bool) -> dict[str, bytes]:
    """Return the files of a tokenizer that splits text into its tokens, and has the ids and template of another."""
    from tokenizers.models import WordLevel

    numbers, settings = tokenizer.get_vocab(with_added_tokens=True), named_tokens(folder)
    tokens = {number: token for token, number in numbers.items()}
    special = special_numbers(folder, numbers, settings, like_bert)
    names = {ROLES[symbol][0][0]: tokens[number] for symbol, number in special.items()}
    ordinary = list(ordinary_tokens(tokenizer))
    tokenizer.model = WordLevel(numbers, unk_token=names["unk_token"])
    if cased:
        tokenizer.normalizer = None
    _split_into(tokenizer, ordinary, kind)
    # Other classes of transformers would make a tokenizer of their own from the tokens.
    settings |= {**names, "tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("do_lower_case", None)
    return {TOKENIZER_FILE: tokenizer.to_str(pretty=True).encode(), SETTINGS: json.dumps(settings, indent=2).encode()}


def _files_with_capitals(folder: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a BERT's tokenizer that keeps capitals."""
    settings = json.loads(files.get(SETTINGS, b"{}"))
    changed = {SETTINGS: json.dumps({**settings, "do_lower_case": False}).encode()}
    if TOKENIZER_FILE in files:
        state = json.loads(files[TOKENIZER_FILE])
        if (state.get("normalizer") or {}).get("type") != "BertNormalizer":
            raise UsageError(f"--cased is for BERT's tokenizer, but {folder / TOKENIZER_FILE} has another normalizer")
        state["normalizer"] |= {"lowercase": False, "strip_accents": None}
        changed[TOKENIZER_FILE] = json.dumps(state, ensure_ascii=False).encode("utf-8")
    return changed
