"""Tokenizer files with the dictionary's ids, from a sentencepiece model or an imported tokenizer.json."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.text.cleaning import CONTROL_CHARACTERS
from fairseq_maelm.text.dictionary import FILLER
from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.sentencepiece_model import (
    CONTROL,
    UNIGRAM,
    UNKNOWN_PIECE,
    export_obstacles,
    read_model,
    user_defined_symbols,
)
from fairseq_maelm.text.tokenizer import ImportedTokenizer
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# What ``clean_text`` replaces by a space. The \s of tokenizers lacks the four separators of Python's.
_WHITE_SPACE = f"[\\s\x1c-\x1f\x85{CONTROL_CHARACTERS}]+"
# The position in front of characters that Unicode attaches to the previous one: marks, joiners, the Thai and Lao AM,
# marks of half-width kana, skin tones and tags. Not at the start, where removing a character shifts offsets.
_ATTACHED = "(?=[\\p{M}\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f])(?!^)"
_PART = "\x01"
# The mark of the beginning of a text and of text after a mask. No text has it, because all white space is " ".
_BEGIN = "\n"
# Stand-ins of user-defined symbols during normalization, which no rule changes; in a text they are unknown characters.
_STAND_INS, _OTHER_UNKNOWN = 0xF0000, "\U0010fffd"


def build_tokenizer(file: Path, dictionary: Dictionary, words: bool = False) -> Any:
    """Make a ``tokenizers.Tokenizer`` with a dictionary's ids; raise ValueError if it cannot tokenize as ``file`` does.

    ``file`` is a byte-pair or unigram model of sentencepiece, or a tokenizer.json that was imported with the
    dictionary. The dictionary includes ``<mask>``; symbols that are not pieces keep their ids but are never produced.
    With ``words``, a text is read as if it followed a space, as every word is in taggers.
    """
    return _imported(file, dictionary, words) if file.suffix == ".json" else _of_sentencepiece(file, dictionary)


def _imported(file: Path, dictionary: Dictionary, words: bool) -> Any:
    """Open an imported tokenizer, in which only the source's names of our special symbols are special tokens."""
    from tokenizers import Regex, normalizers, processors

    tokenizer = ImportedTokenizer(str(file), dictionary).encoder.tokenizer
    first, last = (str(tokenizer.id_to_token(number)) for number in (dictionary.bos(), dictionary.eos()))
    # The source may join two texts differently than fairseq, which may have fine-tuned the model.
    template = _template(first, last, dictionary)
    if words:
        steps = [normalizers.Prepend(" "), normalizers.Replace(Regex("^  "), " "), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    if "ByteLevel" in str(json.loads(tokenizer.to_str())["pre_tokenizer"]):
        # Without this step, offsets include the space before a word.
        trim = processors.ByteLevel(add_prefix_space=words, trim_offsets=True)
        template = processors.Sequence([trim, template])
    tokenizer.post_processor = template
    return tokenizer


def _of_sentencepiece(sentencepiece: Path, dictionary: Dictionary) -> Any:
    from tokenizers import Tokenizer

    model = read_model(sentencepiece)
    _check_expressible(model, dictionary, sentencepiece)
    tokenizer = Tokenizer(_model(model, dictionary))
    tokenizer.normalizer = _normalizer(model)
    tokenizer.pre_tokenizer = _words(user_defined_symbols(model))
    _add_decoder_and_specials(tokenizer, bool(model.trainer_spec.byte_fallback), dictionary)
    if tokenizer.get_vocab_size() != len(dictionary):
        raise ValueError(
            f"the exported tokenizer has {tokenizer.get_vocab_size()} symbols, but the dictionary has {len(dictionary)}"
        )
    return tokenizer


def _check_expressible(model: Any, dictionary: Dictionary, path: Path) -> None:
    found = export_obstacles(model)
    missing = [name for name in _scores(model) if name not in dictionary.indices]
    if missing:
        found.append(f"{len(missing)} of its pieces are not in dict.txt, such as {missing[0]!r}")
    if found:
        raise ValueError(f"{path} cannot be converted to a tokenizer.json: {'; '.join(found)}")


def _scores(model: Any) -> dict[str, float]:
    return {piece.piece: piece.score for piece in model.pieces if piece.type not in (UNKNOWN_PIECE, CONTROL)}


def _model(model: Any, dictionary: Dictionary) -> Any:
    from tokenizers.models import BPE, Unigram

    scores, trainer = _scores(model), model.trainer_spec
    byte_fallback = bool(trainer.byte_fallback)
    if trainer.model_type == UNIGRAM:
        # Symbols that are not pieces get the lowest score of the model; a lower one would change the score of <unk>.
        lowest = min(scores.values())
        vocabulary = [(symbol, scores.get(symbol, lowest)) for symbol in dictionary.symbols]
        return Unigram(vocabulary, unk_id=dictionary.unk(), byte_fallback=byte_fallback)
    # All merges of two pieces into a third, best first: sentencepiece ranks them by the score of the third piece alone.
    symbols = user_defined_symbols(model)
    whole = {*symbols, *filter(_BYTE.fullmatch, scores)}
    pieces = sorted((piece for piece in scores if piece not in whole), key=lambda piece: -scores[piece])
    halves = ((piece[:place], piece[place:]) for piece in pieces for place in range(1, len(piece)))
    return BPE(
        {symbol: index for index, symbol in enumerate(dictionary.symbols)},
        [(left, right) for left, right in halves if left in scores and right in scores],
        unk_token=FAIRSEQ_SYMBOLS[dictionary.unk()],
        fuse_unk=True,
        byte_fallback=byte_fallback,
        # Symbols are words of their own, which no merge makes.
        ignore_merges=bool(symbols),
    )


def _normalizer(model: Any) -> Any:
    from tokenizers import Regex
    from tokenizers.normalizers import NFC, Precompiled, Prepend, Replace, Sequence

    steps: list[Any] = [Replace(Regex(_WHITE_SPACE), " "), NFC()]
    charsmap = model.normalizer_spec.precompiled_charsmap
    if charsmap:
        compiled = Precompiled(charsmap)
        # Precompiled of tokenizers drops marks that are attached to a character that it changes. Composing first keeps
        # most marks; the others are separated by a control character, which the rules remove.
        rules: list[Any] = []
        if compiled.normalize_str(f"a{_PART}b") == "ab":
            rules.append(Replace(Regex(_ATTACHED), _PART))
        rules.append(compiled)
        changed = [symbol for symbol in user_defined_symbols(model) if Sequence(rules).normalize_str(symbol) != symbol]
        steps += _around(rules, changed)
    steps += [Replace(Regex(f"[ {WORD_START}]+$"), ""), Replace(Regex(" {2,}"), " ")]
    steps.append(Prepend(_BEGIN))
    return Sequence(steps)


def _around(rules: list[Any], symbols: list[str]) -> list[Any]:
    """Return rules that leave symbols as they are, which have stand-ins in the meantime, as in sentencepiece.

    Characters are replaced one by one, because other replacements shift the offsets in the text.
    """
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    stand_ins = {each: chr(_STAND_INS + number) for number, each in enumerate(sorted(set("".join(symbols))))}
    before = [Replace(stand_in, _OTHER_UNKNOWN) for stand_in in stand_ins.values()]
    for symbol in symbols:
        for place, each in enumerate(symbol):
            done = "".join(stand_ins[other] for other in symbol[:place])
            rest = re.escape(symbol[place + 1 :])
            before.append(Replace(Regex(f"(?<={done}){re.escape(each)}(?={rest})"), stand_ins[each]))
    return [*before, *rules, *(Replace(stand_in, each) for each, stand_in in stand_ins.items())]


def _words(symbols: list[str]) -> Any:
    """Return the step that cuts words, and symbols in them."""
    from tokenizers import Regex, pre_tokenizers

    def remove(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "removed")

    # Spaces are removed and words get new marks, because a mark that replaces a space has the space's offsets. Text
    # after a mask continues the sentence, as in pretraining: its first word gets no mark if no space precedes it.
    steps = [
        pre_tokenizers.Metaspace(WORD_START, prepend_scheme="first", split=False),
        remove(f"^{WORD_START}{_BEGIN}|^{_BEGIN}(?={WORD_START})"),
        remove(f"{WORD_START}(?=[^{WORD_START}])"),
        pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always", split=True),
        remove(f"^{WORD_START}{_BEGIN}"),
    ]
    if symbols:
        # Added tokens would lose the white space before them.
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated"))
    return pre_tokenizers.Sequence(steps)


def _add_decoder_and_specials(tokenizer: Any, byte_fallback: bool, dictionary: Dictionary) -> None:
    from tokenizers import AddedToken, decoders

    tokenizer.decoder = decoders.Metaspace(WORD_START, prepend_scheme="first", split=True)
    if byte_fallback:
        steps = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = _template("<s>", "</s>", dictionary)
    tokens = [AddedToken(symbol, special=True, normalized=False) for symbol in FAIRSEQ_SYMBOLS]
    # A mask includes the white space before it.
    tokenizer.add_special_tokens([*tokens, AddedToken(MASK, lstrip=True, special=True, normalized=False)])


def _template(first: str, last: str, dictionary: Dictionary) -> Any:
    from tokenizers import processors

    return processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, dictionary.bos()), (last, dictionary.eos())],
    )


def tokenizer_files(tokenizer: Any, max_positions: int, split: bool = False) -> dict[str, str]:
    """Return the names and contents of the tokenizer's files.

    With ``split``, transformers reads the spelling of special tokens as text, as our commands do; without it, masks can
    be typed.

    tokenizer_config.json is not written by transformers, because version 4 cannot open what version 5 saves. Without
    ``tokenizer_class``, version 5 would open an MPNet folder with MPNet's WordPiece tokenizer and give wrong ids.
    """
    added = tokenizer.get_added_tokens_decoder()
    names = ("content", "lstrip", "normalized", "rstrip", "single_word")
    mask = {name: getattr(added[max(added)], name) for name in names}
    first, pad, last, unknown = (tokenizer.id_to_token(number) for number in range(len(FAIRSEQ_SYMBOLS)))
    special = {
        "bos_token": first,
        "cls_token": first,
        "eos_token": last,
        "sep_token": last,
        # MPNet's tokenizer has its unknown token among the ordinary tokens.
        "unk_token": getattr(tokenizer.model, "unk_token", None) or unknown,
        "pad_token": pad,
    }
    content = tokenizer.to_str()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **({"split_special_tokens": True} if split else {}),
        **special,
        "mask_token": {"__type": "AddedToken", **mask, "special": True},
    }
    words = json.loads(content)["pre_tokenizer"] or {}
    if "add_prefix_space" in words:
        # transformers 4 would set it to False.
        settings["add_prefix_space"] = words["add_prefix_space"]
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        "special_tokens_map.json": json.dumps({**special, "mask_token": mask}, indent=2) + "\n",
    }


def check_strings(dictionary: Dictionary, special: Sequence[str] = ()) -> list[str]:
    """Return texts that verify an export: ``HARD_STRINGS`` and all pieces except special tokens, fillers and bytes."""
    known = {*FAIRSEQ_SYMBOLS, MASK, *special}
    pieces = [symbol.replace(WORD_START, " ") for symbol in dictionary.symbols if symbol not in known]
    return HARD_STRINGS + [piece for piece in pieces if FILLER not in piece and not _BYTE.fullmatch(piece)]


def has_ties(file: Path) -> bool:
    """Return True for sentencepiece unigram models, where several segmentations may have the same best score."""
    return file.suffix != ".json" and bool(read_model(file).trainer_spec.model_type == UNIGRAM)
