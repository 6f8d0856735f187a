"""Extend a checkpoint's vocabulary by pieces of a domain's words, whose rows start as means of their parts' rows.

No text gets other ids, except where a new token stands. WordPiece gets whole words as added tokens: as entries of its
table, they would also be found at the beginning of longer words. Byte pairs get merges after all others, and unigram
models pieces that score as their parts do together, and a little more: both find a new piece exactly where its parts
would be neighbors. Letters that were unknown become tokens.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_maelm import __version__
from fairseq_maelm.architecture.families import FAMILIES
from fairseq_maelm.checkpoints.fit import SETTINGS, dictionary_fingerprint, pack_settings, saved_settings
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.corpus.reading import read_documents
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.export.complete_folder import complete, complete_section
from fairseq_maelm.interop.export.exporter import CARD_FILE, write_model
from fairseq_maelm.interop.export.model_card import model_card, table
from fairseq_maelm.interop.export.target import choose_target, default_format
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.importing.huggingface_vocabulary import add_to_model, open_source_tokenizer
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.interop.source_files import CONFIG_FILE, SourceFiles
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.models.build import build_model
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import FILLER, load_dictionary
from fairseq_maelm.text.new_pieces import LEAST, Cutter, NewPiece, WordCounts, count_words, find_pieces
from fairseq_maelm.text.tokenizer_file import open_tokenizer_file
from fairseq_maelm.text.unknown import Encoded, check_known
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, FAIRSEQ_SYMBOLS, MODEL_FILE, TOKENIZER_FILE, TokenizerEncoder

logger = logging.getLogger(__name__)

_SHOWN = 10  # the most words that a message names
_SETTINGS = "tokenizer_config.json"
# The files of a source that would still have the old tokens.
_OLD_FILES = ("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", MODEL_FILE, "spiece.model")
_ROWS = ("encoder.embed_tokens.weight", "lm_head.bias")


@dataclass(frozen=True)
class Extended:
    """The result of an extension."""

    folder: Path
    new: list[str]  # the tokens, in the order of their ids
    used: int  # how many of them the text or the list has; the others are steps towards longer ones
    words: list[str]  # the words of the text that are one new token, those that save most first
    letters: int  # how many of the tokens are letters, or words of a WordPiece, that were unknown
    before: float  # tokens per word of the held-out text
    after: float
    held_out: bool  # whether the text was held out from the search


def extend(
    checkpoint: Path,
    text: Sequence[Path],
    pieces: int,
    output: Path,
    json_field: str = "text",
    words: Path | None = None,
    allow_unknown: bool = False,
) -> Extended:
    """Write a checkpoint with new tokens to a new folder, which appears only after its verification.

    ``text`` are files or folders of the domain's text, and ``json_field`` is the field that holds the text of JSON
    lines. At most ``pieces`` tokens are added: first the lines of the file ``words``, then pieces of the text.
    ``allow_unknown`` goes on if most tokens of the text are unknown. A ValueError says that there is nothing to add or
    that the checkpoint cannot be extended; no files are left behind.
    """
    with whole_folder(output, "maelm extend") as folder:
        source = load_with_model(checkpoint)
        if source.checkpoint.task_name != "maelm":
            raise ValueError(
                f"{checkpoint} was fine-tuned: extend the checkpoint before fine-tuning, and fine-tune the result"
            )
        content = _tokenizer_of(source)
        (folder / TOKENIZER_FILE).write_text(content, encoding="utf-8")
        old = TokenizerEncoder(folder / TOKENIZER_FILE, _symbols(source))
        cutter = Cutter(old.tokenizer, whole=kind_of_tokenizer(content) == WORD_PIECE)
        counts = count_words(chain.from_iterable(read_documents(path, json_field) for path in text), cutter)
        listed = [] if words is None else _listed(words)
        new = find_pieces(counts, cutter, pieces, old.tokenizer.get_vocab(), listed)
        if not new:
            raise CorpusError(_why_nothing(counts, listed))
        ours = _extended(source, content, new, folder)
        encoder = TokenizerEncoder(folder / TOKENIZER_FILE, _symbols(ours))
        _warn_of_cut_words(listed, encoder)
        measured = counts.held_out or counts.words
        before, after = _tokens_per_word(old, encoder, measured)
        check_known(encoder, ", ".join(map(str, text)), allow_unknown, _encoded(encoder, measured))
        used = _used(old, encoder, {**dict.fromkeys(listed, 0), **(counts.words + counts.held_out)})
        letters = sum(piece.name in cutter.letters for piece in new)
        done = Extended(output, [piece.name for piece in new], *used, letters, before, after, bool(counts.held_out))
        _write(ours, folder, done, checkpoint, text)
    return done


def _symbols(source: LoadedCheckpoint) -> int:
    return len(source.dictionary) - len(FAIRSEQ_SYMBOLS) - 1


def _tokenizer_of(source: LoadedCheckpoint) -> str:
    """Return the content of a tokenizer.json with our ids."""
    file = source.tokenizer_file
    if file.suffix == ".json":
        return file.read_text("utf-8")
    return str(build_tokenizer(file, source.dictionary).to_str())


def _listed(file: Path) -> list[str]:
    words = []
    for number, line in numbered_lines(file, blank=False):
        if len(line.split()) > 1:
            raise CorpusError(f"{file}:{number} has {len(line.split())} words: write each on its own line")
        words.append(clean_text(line))
    return words


def _why_nothing(counts: WordCounts, listed: list[str]) -> str:
    if not counts.documents:
        return "the text has no words: give text of the domain"
    if listed:
        return (
            f"there is nothing to add: the {len(listed):,} listed words are one token already, are special tokens or "
            "have characters that no token can have, and the text has nothing that is frequent enough"
        )
    if not counts.runs:
        return "there is nothing to add: each word of the text is one token already. Give text of another domain"
    return (
        f"there is nothing to add: nothing that could become a token is {LEAST} times in the text and in "
        f"{min(LEAST, counts.documents)} of its documents ({counts.documents:,}). Give more text of the domain, or a "
        "list of its words (--words)"
    )


def _warn_of_cut_words(listed: list[str], encoder: TokenizerEncoder) -> None:
    encoded = {word: encoder.encode([f" {word}"])[0] for word in listed}
    cut = [word for word, ids in encoded.items() if len(ids) > 2 or encoder.unknown in ids]
    if cut:
        logger.warning(
            "%d of %d listed words are no single token, because the tokenizer cuts text before it finds tokens, has a "
            "token of this name, or does not know a character that is no letter: %s",
            *(len(cut), len(listed), " ".join(cut[:_SHOWN])),
        )


def _used(old: TokenizerEncoder, new: TokenizerEncoder, words: dict[str, int]) -> tuple[int, list[str]]:
    """Return how many new tokens words have, and those that are one, each as most often written, best savings first."""
    used: set[int] = set()
    saved: Counter[int] = Counter()
    written: dict[int, str] = {}
    for word, number in sorted(words.items(), key=lambda item: -item[1]):
        tokens = new.encode([f" {word}"])[0][:-1].tolist()
        used.update(token for token in tokens if token >= old.dictionary_size)
        if len(tokens) == 1 and tokens[0] in used and number:
            saved[tokens[0]] += number * len(old.encode([f" {word}"])[0])
            written.setdefault(tokens[0], word)
    return len(used), [written[token] for token, _ in saved.most_common()]


def _extended(source: LoadedCheckpoint, content: str, new: list[NewPiece], folder: Path) -> LoadedCheckpoint:
    """Write the new vocabulary to a folder, and return the checkpoint with its new rows."""
    last = len(source.dictionary) - 1
    (folder / TOKENIZER_FILE).write_text(extend_tokenizer(content, new, last + 1, last), encoding="utf-8")
    dictionary = _write_dictionary(folder, source.dictionary, [piece.name for piece in new])
    if source.origin is not None:
        _extend_source(source.origin, new, dictionary).write(folder, source.model.max_positions())
    weights = dict(source.checkpoint.weights)
    groups = _old_parts(new, open_tokenizer_file(folder / TOKENIZER_FILE))
    for name in _ROWS:
        if name in weights:
            rows = torch.stack([weights[name][group].mean(dim=0) for group in groups])
            weights[name] = torch.cat([weights[name][:last], rows, weights[name][last:]])
    settings = {**saved_settings(weights), "vocabulary": dictionary_fingerprint(dictionary)}
    weights[SETTINGS] = pack_settings(settings)
    checkpoint = replace(source.checkpoint, path=folder / CHECKPOINT_FILE, weights=weights)
    return LoadedCheckpoint(checkpoint, build_model(checkpoint, dictionary), dictionary, folder)


def _old_parts(new: list[NewPiece], tokenizer: Any) -> list[Tensor]:
    """Return the ids <int64>[parts] of the old tokens that each new token replaces."""
    found: dict[str, list[int]] = {}
    for piece in new:
        groups = [found.get(part, [tokenizer.token_to_id(part)]) for part in piece.parts]
        found[piece.name] = list(chain.from_iterable(groups))
    return [torch.tensor(group) for group in found.values()]


def _write_dictionary(folder: Path, old: Dictionary, names: list[str]) -> Dictionary:
    symbols = dict.fromkeys(old.symbols[old.nspecial : -1])
    for name in names:
        # The dictionary of a source may name its tokens otherwise.
        while name in symbols or name in old.indices:
            name += "_"
        symbols[name] = None
    lines = "".join(f"{symbol} 1\n" for symbol in symbols)
    (folder / DICTIONARY_FILE).write_text(lines, encoding="utf-8", newline="\n")
    return load_dictionary(str(folder))


def _extend_source(kept: SourceFiles, new: list[NewPiece], dictionary: Dictionary) -> SourceFiles:
    """Return what an export restores: the source's ids, after which come the new ones, and its files."""
    rows = len(kept.order)
    order = torch.cat([kept.order[:-1], torch.arange(rows, rows + len(new)), kept.order[-1:]])
    files = {name: content for name, content in kept.files.items() if name not in _OLD_FILES}
    if CONFIG_FILE in files:
        files[CONFIG_FILE] = json.dumps({**kept.config, "vocab_size": rows + len(new)}, indent=2).encode()
        with TemporaryDirectory() as place:
            for name in kept.files:
                (Path(place) / name).parent.mkdir(exist_ok=True)
                (Path(place) / name).write_bytes(kept.files[name])
            tokenizer = open_source_tokenizer(Path(place))
        files[TOKENIZER_FILE] = extend_tokenizer(tokenizer.to_str(), new, rows).encode("utf-8")
        roles = zip(
            ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), order[[0, 1, 2, 3, -1]].tolist()
        )
        # Other classes of transformers would make a tokenizer of their own from the tokens.
        settings = {role: tokenizer.id_to_token(number) for role, number in roles}
        # So would they make other inputs than the source's class, which its settings need not name.
        types = ["token_type_ids"] * (FAMILIES[kept.config["model_type"]].token_types > 1)
        settings["model_input_names"] = ["input_ids", *types, "attention_mask"]
        settings |= json.loads(files.get(_SETTINGS, b"{}"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        files[_SETTINGS] = json.dumps(settings, indent=2).encode()
    return replace(kept, order=order, vocabulary=dictionary_fingerprint(dictionary), files=files)


def _encoded(encoder: TokenizerEncoder, words: Counter[str]) -> Encoded:
    """Return the counts of the tokens of words, each as often as it is in the text."""
    ids = [encoder.encode([f" {word}"])[0][:-1] for word in words]
    unknown = [int((each == encoder.unknown).sum()) for each in ids]
    return Encoded(
        sum(number * int((each != encoder.space).sum()) for number, each in zip(words.values(), ids)),
        sum(number * each for number, each in zip(words.values(), unknown)),
        [word for word, number in zip(words, unknown) if number][:3],
    )


def _tokens_per_word(old: TokenizerEncoder, new: TokenizerEncoder, words: Counter[str]) -> tuple[float, float]:
    """Return the tokens per word with both tokenizers; raise ValueError if a text without new tokens gets other ids."""
    texts, before, after = [f" {word}" for word in words], 0, 0
    times = [*words.values(), *[0] * len(HARD_STRINGS)]
    for text, number in zip([*texts, *HARD_STRINGS], times, strict=True):
        theirs, ours = (each.encode([text])[0].tolist() for each in (old, new))
        if theirs != ours and all(token < old.dictionary_size for token in ours):
            raise ValueError(f"the extended tokenizer would change the tokens of {ascii(text)}")
        before, after = before + number * (len(theirs) - 1), after + number * (len(ours) - 1)
    return before / words.total(), after / words.total()


def _write(ours: LoadedCheckpoint, folder: Path, done: Extended, base: Path, text: Sequence[Path]) -> None:
    """Write the rest of the folder, as an import does, and verify that transformers reads text as we do."""
    target, title = choose_target(ours, default_format(ours), "encoder"), done.folder.name
    write_model(ours, target, folder)
    tokenizer = open_tokenizer_file(folder / TOKENIZER_FILE)
    for name, content in tokenizer_files(tokenizer, ours.model.max_positions()).items():
        if name != TOKENIZER_FILE:
            (folder / name).write_text(content, encoding="utf-8")
    facts = {
        "base": base.parent.name,
        "text": ", ".join(path.name for path in text),
        "new tokens": len(done.new),
        "tokens per word": f"{done.after:.3f}, before {done.before:.3f}",
        "extended by": f"fairseq_maelm {__version__}",
    }
    card = model_card(
        ours, target, title, None, f"Its vocabulary was extended, and it was not trained since.\n\n{table(facts)}",
        ["old tokens: the rows of the base; new tokens: the means of the rows of the tokens that they replace"],
        [complete_section(ours, title)],
    )  # fmt: skip
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    complete(ours, folder)


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

    Parts of a new token are tokens of the file or new ones before it. Ids without a token get names that no text has.
    ``last`` is the id of a token that becomes the last one, behind the new tokens; their ids then begin here.
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
