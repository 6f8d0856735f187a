"""tokenizer.json from a sentencepiece model and the dictionary made from it, with equal ids."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary

from fairseq_maelm.corpus.vocabulary import FAIRSEQ_SYMBOLS
from fairseq_maelm.corpus.vocabulary import MASK_SYMBOL as MASK
from fairseq_maelm.export.hard_strings import HARD_STRINGS, MAY_DIFFER
from fairseq_maelm.tasks.vocabulary import WORD_START

# Kinds of pieces and of models in sentencepiece's protocol buffers.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_UNIGRAM, _BPE = 1, 2

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# What Python's \s matches, spelled out for a library whose \s leaves the four separators out.
_WHITE_SPACE = "[\\s\\x1c-\\x1f\\x85]+"


def build_tokenizer(sentencepiece: Path, dictionary: Dictionary) -> Any:
    """Make a ``tokenizers.Tokenizer`` whose ids are the dictionary's.

    Args:
        sentencepiece: file of a byte-pair or unigram model.
        dictionary: fairseq's, in any order, with ``<mask>``; symbols that are no pieces, such as padding to a round
            size, keep their ids and are never produced.

    Raises:
        ValueError: if tokenizer.json cannot express the model.
    """
    from tokenizers import Tokenizer

    model = _read_model(sentencepiece)
    _check_expressible(model, dictionary, sentencepiece)
    tokenizer = Tokenizer(_model(model, dictionary))
    tokenizer.normalizer = _normalizer(model)
    _add_spaces_and_specials(tokenizer, bool(model.trainer_spec.byte_fallback), dictionary)
    if tokenizer.get_vocab_size() != len(dictionary):
        raise ValueError(
            f"the exported tokenizer has {tokenizer.get_vocab_size()} symbols and the dictionary {len(dictionary)}"
        )
    return tokenizer


def _read_model(path: Path) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ValueError("reading a sentencepiece model needs protobuf: pip install 'fairseq_maelm[hf]'") from error
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    return model


def _check_expressible(model: Any, dictionary: Dictionary, path: Path) -> None:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    found = []
    if trainer.model_type not in (_UNIGRAM, _BPE):
        found.append("it is neither a byte-pair nor a unigram model")
    if trainer.treat_whitespace_as_suffix:
        found.append("it puts the space behind words")
    if not (normalizer.add_dummy_prefix and normalizer.escape_whitespaces and normalizer.remove_extra_whitespaces):
        found.append("it treats white space in another way than sentencepiece does by default")
    if any(piece.type == _USER_DEFINED for piece in model.pieces):
        found.append("it has user-defined symbols")
    missing = [name for name in _scores(model) if name not in dictionary.indices]
    if missing:
        found.append(
            f"{len(missing)} of its pieces are not in dict.txt (the first: {missing[0]!r}), as if it were <unk>"
        )
    if found:
        raise ValueError(f"no tokenizer.json can stand for {path}: {'; '.join(found)}")


def _scores(model: Any) -> dict[str, float]:
    return {piece.piece: piece.score for piece in model.pieces if piece.type not in (_UNKNOWN, _CONTROL)}


def _model(model: Any, dictionary: Dictionary) -> Any:
    from tokenizers.models import BPE, Unigram

    scores, trainer = _scores(model), model.trainer_spec
    byte_fallback = bool(trainer.byte_fallback)
    if trainer.model_type == _UNIGRAM:
        # Symbols that are no pieces get the lowest score that there is: a lower one would change that of <unk>.
        lowest = min(scores.values())
        vocabulary = [(symbol, scores.get(symbol, lowest)) for symbol in dictionary.symbols]
        return Unigram(vocabulary, unk_id=dictionary.unk(), byte_fallback=byte_fallback)
    merges = sorted(_merges(scores), key=lambda merge: -merge.score)
    return BPE(
        {symbol: index for index, symbol in enumerate(dictionary.symbols)},
        [(merge.left, merge.right) for merge in merges],
        unk_token=FAIRSEQ_SYMBOLS[dictionary.unk()],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


class _Merge(NamedTuple):
    score: float
    left: str
    right: str


def _merges(scores: dict[str, float]) -> Iterator[_Merge]:
    """Every way to make a piece of two; sentencepiece goes by the score of the result alone."""
    for piece, score in scores.items():
        if not _BYTE.fullmatch(piece):
            for place in range(1, len(piece)):
                if piece[:place] in scores and piece[place:] in scores:
                    yield _Merge(score, piece[:place], piece[place:])


def _normalizer(model: Any) -> Any:
    from tokenizers import Regex
    from tokenizers.normalizers import NFC, Precompiled, Replace, Sequence

    steps: list[Any] = [Replace(Regex(_WHITE_SPACE), " ")]
    charsmap = model.normalizer_spec.precompiled_charsmap
    if charsmap:
        # tokenizers' Precompiled loses marks that follow a letter which it changes: composed first, most are safe.
        steps += [NFC(), Precompiled(charsmap)]
    # No stripping on the left: Metaspace looks where a text begins and would find that it does not begin there.
    steps += [Replace(Regex(f"[ {WORD_START}]+$"), ""), Replace(Regex(" {2,}"), " ")]
    return Sequence(steps)


def _add_spaces_and_specials(tokenizer: Any, byte_fallback: bool, dictionary: Dictionary) -> None:
    from tokenizers import AddedToken, decoders, pre_tokenizers, processors

    # "first": what follows a mask goes on within the sentence, as in pretraining.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(WORD_START, prepend_scheme="first", split=True)
    if byte_fallback:
        steps = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
    first, last = FAIRSEQ_SYMBOLS[dictionary.bos()], FAIRSEQ_SYMBOLS[dictionary.eos()]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, dictionary.bos()), (last, dictionary.eos())],
    )
    tokens = [AddedToken(symbol, special=True, normalized=False) for symbol in FAIRSEQ_SYMBOLS]
    # The white space before a mask belongs to it.
    tokenizer.add_special_tokens([*tokens, AddedToken(MASK, lstrip=True, special=True, normalized=False)])


def tokenizer_files(tokenizer: Any, max_positions: int) -> dict[str, str]:
    """Names and contents of the tokenizer's files.

    tokenizer_config.json is written by hand: without its class transformers 5 opens an MPNet folder with MPNet's own
    WordPiece tokenizer and gives wrong ids, and what transformers 5 saves, version 4 cannot open.
    """
    mask = {"content": MASK, "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
    first, pad, last, unknown = FAIRSEQ_SYMBOLS
    special = {
        "bos_token": first,
        "cls_token": first,
        "eos_token": last,
        "sep_token": last,
        "unk_token": unknown,
        "pad_token": pad,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **special,
        "mask_token": {"__type": "AddedToken", **mask, "special": True},
    }
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        "special_tokens_map.json": json.dumps({**special, "mask_token": mask}, indent=2) + "\n",
    }


class Difference(NamedTuple):
    """A text that two tokenizers read differently.

    Attributes:
        text: what was read.
        expected: fairseq's tokens.
        found: those of the exported tokenizer.
    """

    text: str
    expected: list[int]
    found: list[int]


def check_strings(dictionary: Dictionary) -> list[str]:
    """The texts on which an export is checked: the bundled ones, and every piece of the vocabulary as a word."""
    special = {*FAIRSEQ_SYMBOLS, MASK}
    pieces = [symbol.replace(WORD_START, " ") for symbol in dictionary.symbols if symbol not in special]
    return HARD_STRINGS + [piece for piece in pieces if "madeupword" not in piece and not _BYTE.fullmatch(piece)]


def differences(expected: Any, found: Any, texts: Sequence[str], ties: bool) -> list[Difference]:
    """Compare two ways to read texts.

    Args:
        expected, found: functions from a text to its ids, without special tokens around them.
        texts: to read.
        ties: whether to let pass the same pieces in another order. In unigram models several orders of repeated
            characters ("rr r" and "r rr") may have one score, and either is a best one.
    """
    wrong = []
    for text in texts:
        pair = Difference(text, expected(text), found(text))
        same = sorted(pair.expected) == sorted(pair.found) if ties else pair.expected == pair.found
        if not same:
            wrong.append(pair)
    return wrong


def known_differences(expected: Any, found: Any) -> dict[str, str]:
    """The listed texts that do come out differently, with the reason."""
    return {text: reason for text, reason in MAY_DIFFER.items() if differences(expected, found, [text], ties=False)}


def is_unigram(sentencepiece: Path) -> bool:
    """Whether a sentencepiece model is a unigram model."""
    return bool(_read_model(sentencepiece).trainer_spec.model_type == _UNIGRAM)
