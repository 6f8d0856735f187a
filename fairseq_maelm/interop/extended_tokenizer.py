"""Add tokens to a tokenizer.json so that no text gets other ids, except where a new token stands.

WordPiece gets whole words as added tokens: as entries of its table, they would also be found at the beginning of longer
words. Byte pairs get merges after all others, and unigram models pieces that score as their parts do together, and a
little more: both find a new piece exactly where its parts would be neighbors. Letters that were unknown become tokens.
"""

import json
from typing import Any

from fairseq_maelm.interop.importing.huggingface_vocabulary import add_to_model
from fairseq_maelm.text.dictionary import FILLER
from fairseq_maelm.text.new_pieces import NewPiece

WORD_PIECE, BYTE_PAIRS, UNIGRAM = "WordPiece", "BPE", "Unigram"
# What a unigram piece scores above its parts: more than rounding, less than two ways to cut a word differ.
_MORE = 1e-6


def kind_of_tokenizer(content: str) -> str:
    """Return the type of the model in a tokenizer.json; raise ValueError if it cannot be extended."""
    kind = json.loads(content)["model"].get("type", UNIGRAM)
    if kind not in (WORD_PIECE, BYTE_PAIRS, UNIGRAM):
        raise ValueError(f"the tokenizer is of the type {kind}, but only WordPiece, BPE and Unigram can be extended")
    return str(kind)


def extend_tokenizer(content: str, new: list[NewPiece], rows: int, last: int | None = None) -> str:
    """Return the content of a tokenizer.json with new tokens, whose ids follow those of ``rows`` tokens.

    Args:
        content: the content of the file.
        new: the new tokens, whose parts are tokens of the file or new ones before them.
        rows: the number of ids, of which some may have no token: these get names that no text has.
        last: the id of a token that becomes the last one, behind the new tokens; their ids then begin here.

    Raises:
        ValueError: the library gives the tokens other ids.
    """
    from tokenizers import Tokenizer

    state, kind = json.loads(content), kind_of_tokenizer(content)
    state["padding"] = state["truncation"] = None
    model, first = state["model"], rows if last is None else last
    names = {piece.name: first + place for place, piece in enumerate(new)}
    moved = {} if last is None else {last: last + len(new)}
    for token in state["added_tokens"]:
        token["id"] = moved.get(token["id"], token["id"])
    if kind == WORD_PIECE:
        _add_words(state, new, first)
    elif kind == BYTE_PAIRS:
        add_to_model(model, state["added_tokens"])
        numbers = {token: moved.get(number, number) for token, number in model["vocab"].items()}
        fillers = _fillers(first, set(numbers.values()))
        model["vocab"] = {**numbers, **fillers, **names}
        pairs = bool(model["merges"]) and isinstance(model["merges"][0], str)
        merged = [piece.parts for piece in new if piece.is_pair]
        model["merges"] += [" ".join(parts) if pairs else list(parts) for parts in merged]
    else:
        _add_unigrams(state, new, first, last)
    text = json.dumps(state, ensure_ascii=False, indent=2)
    tokenizer = Tokenizer.from_str(text)
    wrong = [name for name, number in names.items() if tokenizer.token_to_id(name) != number]
    if wrong or tokenizer.get_vocab_size() != rows + len(new):
        raise ValueError(f"the tokenizer cannot be extended: the library numbers {(wrong or ['its tokens'])[0]} anew")
    return text


def _fillers(first: int, used: set[int]) -> dict[str, int]:
    # The ending is CamemBERT's for rows that no text uses.
    return {f"{FILLER}{number:04d}NOTUSED": number for number in range(first) if number not in used}


def _add_words(state: dict[str, Any], new: list[NewPiece], first: int) -> None:
    """Add tokens that are found between characters that are no letters, digits or underscores, or also inside of words.

    The library numbers added tokens by their order alone, after those of the model.
    """
    model, added = state["model"], state["added_tokens"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < first}
    used = {*model["vocab"].values(), *(token["id"] for token in added)}
    shape = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    for name, number in _fillers(first, used).items():
        added.append({"id": number, "content": name, **shape})
    for number, (name, _, inside) in enumerate(new, first):
        added.append({"id": number, "content": name, **shape, "single_word": not inside})
    added.sort(key=lambda token: int(token["id"]))


def _add_unigrams(state: dict[str, Any], new: list[NewPiece], first: int, last: int | None) -> None:
    """Add pieces to the list whose places are the ids."""
    model = state["model"]
    add_to_model(model, state["added_tokens"])
    pieces = model["vocab"]
    behind = [] if last is None else [pieces[last]]
    lowest = min(score for _, score in pieces)
    pieces = pieces[:first]
    pieces += [[name, lowest] for name in _fillers(first, set(range(len(pieces))))]
    scores = dict(pieces)
    for piece in new:
        # A letter was unknown, which costs more than any piece.
        scores[piece.name] = sum(scores[part] for part in piece.parts) + _MORE if piece.is_pair else lowest
        pieces.append([piece.name, scores[piece.name]])
    model["vocab"] = pieces + behind
