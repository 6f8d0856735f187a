"""Convert the vocabulary and tokenizer of a Hugging Face folder to a fairseq dictionary and tokenizer."""

import json
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.interop.compare_outputs import differences
from fairseq_maelm.interop.configuration import check_numbers
from fairseq_maelm.interop.importing.source import SourceVocabulary, refuse
from fairseq_maelm.interop.tokenizer_test_strings import ORDINARY_STRINGS
from fairseq_maelm.text.dictionary import FILLER
from fairseq_maelm.text.tokenizer_file import encode_text, open_tokenizer_file
from fairseq_maelm.text.vocabulary import (
    FAIRSEQ_SYMBOLS,
    MASK_SYMBOL,
    MODEL_FILE,
    TOKENIZER_FILE,
    dictionary_symbols,
    load_sentencepiece,
)

logger = logging.getLogger(__name__)

SETTINGS = "tokenizer_config.json"
# Numbers of tokens in texts made of a tokenizer's own tokens: in all of them, and in one.
_MOST_TOKENS, _PER_TEXT = 1000, 25
# Files with the tokens of a tokenizer, besides those that its class names.
_VOCABULARIES = (MODEL_FILE, "spiece.model", "vocab.txt", "vocab.json")
_ONE_OF_THEM = f"{TOKENIZER_FILE}, or {MODEL_FILE} or vocab.txt,"

# Our special symbols in order, each with its names in tokenizer_config.json and its spellings in RoBERTa and in BERT.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "<s>": (("cls_token", "bos_token"), ("<s>", "[CLS]")),
    "<pad>": (("pad_token",), ("<pad>", "[PAD]")),
    "</s>": (("sep_token", "eos_token"), ("</s>", "[SEP]")),
    "<unk>": (("unk_token",), ("<unk>", "[UNK]")),
    MASK_SYMBOL: (("mask_token",), ("<mask>", "[MASK]")),
}


def read_vocabulary(folder: Path, rows: int, pad: int | None, like_bert: bool = False) -> SourceVocabulary:
    """Order the embeddings of a model as a fairseq dictionary: <s>, <pad>, </s>, <unk>, all other tokens, <mask>.

    RoBERTa and MPNet already have this order, so their ids do not change. The folder's tokenizer.json is renumbered to
    our ids, but text is tokenized with the folder's sentencepiece model if there is one. ``pad`` is the padding id on
    which the model's outputs depend, or None. ``like_bert``: special tokens that no file names are spelled as in BERT.
    """
    tokenizer = open_source_tokenizer(folder)
    numbers: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if max(numbers.values()) >= rows:
        raise refuse(
            folder,
            f"its tokenizer has the id {max(numbers.values())}, but its model has only {rows} embeddings. If tokens "
            "were added, model.resize_token_embeddings(len(tokenizer)) gives them rows",
        )
    named = named_tokens(folder)
    special = special_numbers(folder, numbers, named, like_bert)
    if not set(numbers.values()) - set(special.values()):
        raise refuse(folder, "its tokenizer has special tokens alone, so that every text would be unknown")
    if pad not in (None, special["<pad>"]):
        raise refuse(folder, f"the id of padding is {special['<pad>']} in its tokenizer, but {pad} in its model")
    first, last = [special[symbol] for symbol in FAIRSEQ_SYMBOLS], special[MASK_SYMBOL]
    ordinary = [number for number in range(rows) if number not in special.values()]
    order = [*first, *ordinary, last]
    tokens = {number: token for token, number in numbers.items()}
    symbols = _symbols([(number, tokens.get(number)) for number in ordinary])
    file, added = folder / TOKENIZER_FILE, markers(tokenizer, special.values())
    content = file.read_text("utf-8") if file.is_file() else tokenizer.to_str(pretty=True)
    if order != list(range(rows)):
        content = renumber(content, {theirs: ours for ours, theirs in enumerate(order)}, folder)
    files = {TOKENIZER_FILE: content.encode("utf-8")}
    if (folder / MODEL_FILE).is_file():
        pieces = set(dictionary_symbols(load_sentencepiece(folder / MODEL_FILE)))
        # The model cannot produce tokens that were added to its pieces.
        if pieces.issuperset(added):
            symbols = _check_pieces(folder, symbols, pieces)
            files[MODEL_FILE] = (folder / MODEL_FILE).read_bytes()
    encode = encode_of(tokenizer)
    own = texts_of_tokens(tokenizer)
    if file.is_file():
        _warn_of_other_tokens(folder, encode, own)
    return SourceVocabulary(order, symbols, files, encode, added, own)


def _warn_of_other_tokens(folder: Path, encode: Callable[[str], list[int]], own: Sequence[str]) -> None:
    """Log a warning if transformers reads ordinary text, or text of its own tokens, differently from tokenizer.json.

    Settings in tokenizer_config.json, such as do_lower_case, override those in tokenizer.json for some classes.
    """
    from fairseq_maelm.hf import open_pretrained

    try:
        theirs = open_pretrained("AutoTokenizer", folder)
    except ValueError as error:  # this tokenizer.json is enough for an import
        logger.warning(
            "transformers cannot open the tokenizer of %s (%s), so that its %s was compared with no other. An export "
            "has the same files, which transformers cannot open either",
            folder, error, TOKENIZER_FILE,
        )  # fmt: skip
        return
    wrong = differences(
        lambda text: list(theirs(text, add_special_tokens=False, verbose=False)["input_ids"]),
        encode,
        (*ORDINARY_STRINGS, *own),
    )
    if wrong:
        logger.warning(
            "transformers reads text in %s differently from its %s, for example %s. An encoder adapted here learns the "
            "tokens of this file, and its export is read with those of transformers. To make them agree before the "
            "import: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
            folder, TOKENIZER_FILE, ascii(wrong[0].text),
        )  # fmt: skip


def open_source_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a Hugging Face folder as a ``tokenizers.Tokenizer``."""
    if (folder / TOKENIZER_FILE).is_file():
        # transformers might ignore this file and use another class of tokenizers for the kind of model.
        return open_tokenizer_file(folder / TOKENIZER_FILE)
    from fairseq_maelm.hf import open_pretrained

    if (folder / SETTINGS).is_file():
        check_numbers(folder, read_json(folder / SETTINGS), SETTINGS)
    try:
        tokenizer = open_pretrained("AutoTokenizer", folder)
    except ValueError as error:
        raise ValueError(f"transformers finds no tokenizer in {folder} ({error}): put {_ONE_OF_THEM} there") from error
    # Without a file, version 5 of transformers makes a tokenizer of special tokens alone for some families.
    if not any((folder / name).is_file() for name in {*_VOCABULARIES, *tokenizer.vocab_files_names.values()}):
        raise ValueError(f"there is no tokenizer in {folder}: put {_ONE_OF_THEM} there")
    if not hasattr(tokenizer, "backend_tokenizer"):
        kind = type(tokenizer).__name__
        raise refuse(folder, f"its tokenizer, {kind}, is Python code that no {TOKENIZER_FILE} can replace")
    return tokenizer.backend_tokenizer


def ordinary_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the tokens that text may become and their ids, in order: all but those that were added to the model's."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda each: each[1])
    return {token: number for token, number in tokens if token not in added}


def texts_of_tokens(tokenizer: Any) -> list[str]:
    """Return texts made of a tokenizer's own tokens, side by side and between spaces."""
    numbers = list(ordinary_tokens(tokenizer).values())
    chosen = numbers[:: max(1, len(numbers) // _MOST_TOKENS)]
    spelled = tokenizer.decode_batch([[number] for number in chosen], skip_special_tokens=False)
    rows = [spelled[start : start + _PER_TEXT] for start in range(0, len(spelled), _PER_TEXT)]
    return [between.join(row) for row in rows for between in (" ", "")]


def encode_of(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return a function from a text to its token ids, without special symbols, truncation or padding."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: list(encode_text(tokenizer, text).ids)


def markers(tokenizer: Any, roles: Collection[int]) -> list[str]:
    """Return the tokens that users added to a tokenizer: all but those for unknown text and with the ids ``roles``."""
    added, unknown = tokenizer.get_added_tokens_decoder(), getattr(tokenizer.model, "unk_token", None)
    found = [token.content for number, token in added.items() if number not in roles and token.content != unknown]
    # CamemBERT has names for rows without use.
    return [token for token in found if not token.endswith("NOTUSED")]


def _text_of(token: Any) -> Any:
    """Return the text of a special token, which settings have as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def named_tokens(folder: Path) -> dict[str, Any]:
    """Return the settings of the tokenizer, which name its special tokens."""
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", SETTINGS):
        if (folder / name).is_file():
            named |= read_json(folder / name)
    return named


def special_numbers(folder: Path, numbers: dict[str, int], named: dict[str, Any], like_bert: bool) -> dict[str, int]:
    """Return the source's id for each of our special symbols."""
    found: dict[str, int] = {}
    for symbol, (roles, spellings) in ROLES.items():
        given = [text for text in map(_text_of, map(named.get, roles)) if isinstance(text, str)]
        candidates = [*given, *(reversed(spellings) if like_bert else spellings)]
        if symbol == "<unk>" and not like_bert:
            # MPNet has both "<unk>" and, among the ordinary tokens, "[UNK]", which its tokenizer uses.
            candidates = [symbol, *candidates]
        place = next((numbers[each] for each in candidates if each in numbers), None)
        if place is None:
            raise refuse(folder, f"its tokenizer has no {roles[0]}, which is {symbol} in a fairseq dictionary")
        if place in found.values():
            other = next(name for name, number in found.items() if number == place)
            raise refuse(folder, f"its tokenizer uses the same token for {other} and {symbol}")
        found[symbol] = place
    return found


def _symbols(rows: Sequence[tuple[int, str | None]]) -> list[str]:
    """Return valid names in dict.txt for the ordinary symbols: distinct and without white space."""
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


def _check_pieces(folder: Path, symbols: list[str], pieces: set[str]) -> list[str]:
    """Replace symbols that are not pieces of the sentencepiece model by filler symbols."""
    missing = pieces.difference(symbols)
    if missing:
        raise refuse(folder, f"{len(missing)} pieces of {MODEL_FILE} have no id, such as {sorted(missing)[0]!r}")
    return [
        symbol if symbol in pieces or FILLER in symbol else f"{FILLER}_{place}" for place, symbol in enumerate(symbols)
    ]


def renumber(content: str, number_of: dict[int, int], where: Any) -> str:
    """Return the content of a tokenizer.json with new token ids; ``where`` is named in error messages."""
    state = json.loads(content)
    model = state["model"]
    # Padding has an id too, and texts are padded and cut by programs that know the model.
    state["padding"] = state["truncation"] = None
    add_to_model(model, state["added_tokens"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: number_of[number] for token, number in model["vocab"].items()}
    elif model.get("type", "Unigram") == "Unigram":  # old files do not name the type
        model["vocab"], model["unk_id"] = _renumber_unigram(model, number_of)
    else:
        raise refuse(where, f"the tokens of a tokenizer of type {model.get('type')!r} cannot be renumbered")
    for token in state["added_tokens"]:
        token["id"] = number_of[token["id"]]
    state["added_tokens"].sort(key=lambda token: int(token["id"]))
    if state.get("post_processor") is not None:
        state["post_processor"] = _renumber_template(state["post_processor"], number_of, where)
    return json.dumps(state, ensure_ascii=False, indent=2)


def add_to_model(model: dict[str, Any], added: list[dict[str, Any]]) -> None:
    """Copy the added tokens to the model's vocabulary; ``tokenizers`` ignores the ids in the list of added tokens."""
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        model["vocab"] = pieces | {token["content"]: token["id"] for token in added}
        return
    # Added tokens follow the pieces; a lower score than the lowest would change that of unknown text.
    lowest = min((score for _, score in pieces), default=0.0)
    for token in sorted(added, key=lambda token: int(token["id"])):
        if token["id"] >= len(pieces):
            pieces.append([token["content"], lowest])


def _renumber_unigram(model: dict[str, Any], number_of: dict[int, int]) -> tuple[list[Any], Any]:
    """Return the list of pieces in the order of the new ids, and the new id of the unknown piece."""
    pieces: dict[int, Any] = {number_of[number]: piece for number, piece in enumerate(model["vocab"])}
    lowest = min(score for _, score in pieces.values())
    # Rows without a token come before <mask>.
    listed = [pieces.get(number, [f"{FILLER}{number:04d}", lowest]) for number in range(max(pieces) + 1)]
    unknown = model.get("unk_id")
    return listed, None if unknown is None else number_of[unknown]


def _renumber_template(processor: dict[str, Any], number_of: dict[int, int], where: Any) -> dict[str, Any]:
    kind = processor["type"]
    if kind == "Sequence":
        parts = [_renumber_template(each, number_of, where) for each in processor["processors"]]
        return {**processor, "processors": parts}
    if kind in ("RobertaProcessing", "BertProcessing"):
        ends = {name: [processor[name][0], number_of[processor[name][1]]] for name in ("sep", "cls")}
        return {**processor, **ends}
    if kind == "TemplateProcessing":
        special = {
            name: {**each, "ids": [number_of[number] for number in each["ids"]]}
            for name, each in processor["special_tokens"].items()
        }
        return {**processor, "special_tokens": special}
    if kind == "ByteLevel":
        return processor
    raise refuse(where, f"the tokens of a post-processor of type {kind!r} cannot be renumbered")
