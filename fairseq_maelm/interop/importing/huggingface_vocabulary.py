"""The vocabulary of a Hugging Face folder as a fairseq dictionary, and its tokenizer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files import read_json
from fairseq_maelm.interop.importing.source import SourceVocabulary, refuse
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
        ValueError: there is no tokenizer, it lacks a special symbol, or it does not belong to the model.
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
        file = folder / TOKENIZER_FILE
        content = file.read_text("utf-8") if file.is_file() else tokenizer.to_str(pretty=True)
        if order != list(range(rows)):
            content = renumber(content, number_of, folder)
        files = {TOKENIZER_FILE: content.encode("utf-8")}
    return SourceVocabulary(order, symbols, files, _without_special(tokenizer))


def _open_tokenizer(folder: Path) -> Any:
    if (folder / TOKENIZER_FILE).is_file():
        from tokenizers import Tokenizer

        # Not through transformers, which may take another class than the file's for a model of this kind.
        try:
            return Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:  # the library knows no other kind
            raise refuse(folder, f"its {TOKENIZER_FILE} cannot be read ({error})") from error
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
    """Return our special symbol -> the source's number."""
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            named |= read_json(folder / name)
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


def _symbols(rows: Sequence[tuple[int, str | None]]) -> list[str]:
    """Return names of the ordinary symbols that dict.txt can hold: without white space, each once."""
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
    """Name what is not a piece of the sentencepiece model as a filler."""
    pieces = set(dictionary_symbols(load_sentencepiece(folder / MODEL_FILE)))
    missing = pieces.difference(symbols)
    if missing:
        raise refuse(folder, f"{len(missing)} pieces of {MODEL_FILE} have no number, such as {sorted(missing)[0]!r}")
    return [
        symbol if symbol in pieces or FILLER in symbol else f"{FILLER}_{place}" for place, symbol in enumerate(symbols)
    ]


def renumber(content: str, number_of: dict[int, int], where: Any) -> str:
    """Give every token of a tokenizer.json another number, and return the new content.

    Args:
        content: of the file.
        number_of: old number -> new number, for all tokens.
        where: named in errors.

    Raises:
        ValueError: the kind of model or template is not known to hold numbers.
    """
    state = json.loads(content)
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: number_of[number] for token, number in model["vocab"].items()}
    elif model.get("type") == "Unigram":
        model["vocab"], model["unk_id"] = _renumber_unigram(model, number_of, where)
    else:
        raise refuse(where, f"the tokens of a tokenizer {model.get('type')!r} cannot be given other numbers")
    for token in state["added_tokens"]:
        token["id"] = number_of[token["id"]]
    state["added_tokens"].sort(key=lambda token: int(token["id"]))
    if state.get("post_processor") is not None:
        state["post_processor"] = _renumber_template(state["post_processor"], number_of, where)
    return json.dumps(state, ensure_ascii=False, indent=2)


def _renumber_unigram(model: dict[str, Any], number_of: dict[int, int], where: Any) -> tuple[list[Any], Any]:
    """Numbers are places in the list; a place that gets no piece stands for an added token, which is found first."""
    pieces: dict[int, Any] = {number_of[number]: piece for number, piece in enumerate(model["vocab"])}
    if sorted(pieces) != list(range(len(pieces))):
        raise refuse(where, "its tokens would leave gaps in the list of a Unigram tokenizer")
    unknown = model.get("unk_id")
    return [pieces[number] for number in range(len(pieces))], None if unknown is None else number_of[unknown]


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
    raise refuse(where, f"numbers of tokens in a post-processor {kind!r} are not known")
