"""A data folder's vocabulary: dict.txt with a sentencepiece model or an imported tokenizer.json, and its encoder."""

import functools
import io
import re
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_maelm.files.atomic import CorpusError, read_regular
from fairseq_maelm.text.offsets import WORD_START, AlignedTokens, encodable, sentencepiece_spans, tokenizer_spans
from fairseq_maelm.text.tokenizer_file import encode_text, open_tokenizer_file
from fairseq_maelm.text.unknown import Encoded

# fairseq.data.Dictionary puts these four in front of the file's symbols; the task maelm appends <mask>.
FAIRSEQ_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
END_OF_SENTENCE = FAIRSEQ_SYMBOLS.index("</s>")
UNKNOWN = FAIRSEQ_SYMBOLS.index("<unk>")
MASK_SYMBOL = "<mask>"

MODEL_FILE = "sentencepiece.bpe.model"
DICTIONARY_FILE = "dict.txt"
# File of the library tokenizers; its token ids equal those of the dict.txt in the same folder.
TOKENIZER_FILE = "tokenizer.json"
# File in which an import keeps source data for a later export; see ``fairseq_maelm.interop.source_files``.
SOURCE_FILE = "source_files.safetensors"

# The model file records the number of training threads; a fixed number gives the same bytes on every machine.
_TRAINING_THREADS = 4
# The model records the temporary file of the rules, too. A serialized protocol buffer that empties this field of the
# normalizer; appending it to a serialized model overrides the field, without a protocol buffer library.
_NO_RULE_FILE = b"\x1a\x02\x32\x00"


class VocabularyPreset(NamedTuple):
    """A named combination of vocabulary size and normalization."""

    size: int  # pieces of the sentencepiece model, with its 3 special ones; fairseq's dictionary with <mask> has 2 more
    normalization: str  # name of sentencepiece's normalization rule


PRESETS = {"uncased": VocabularyPreset(32_766, "nmt_nfkc_cf"), "cased": VocabularyPreset(63_998, "nmt_nfkc")}


def train_sentencepiece(
    paragraphs: Iterable[str], vocabulary_size: int, normalization: str, character_coverage: float
) -> bytes:
    """Train a byte-pair encoding and return the serialized model; the same paragraphs give the same bytes.

    ``vocabulary_size`` includes <unk>, <s> and </s>. ``character_coverage`` (0.98 to 1) is the share of the text's
    characters that pieces can represent. sentencepiece keeps the whole text in memory.
    """
    model = io.BytesIO()
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="ascii") as rules:
            rules.write(_rules(normalization))
            rules.flush()
            rule: dict[str, Any] = {"normalization_rule_name": normalization}
            if rules.tell():
                rule = {"normalization_rule_tsv": rules.name}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(paragraphs),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocabulary_size,
                **rule,
                character_coverage=character_coverage,
                # sentencepiece would skip longer lines.
                max_sentence_length=2**30,
                num_threads=_TRAINING_THREADS,
                minloglevel=2,
            )
    except RuntimeError as error:
        raise CorpusError(_training_failure(str(error), vocabulary_size)) from error
    if not _rules(normalization):
        return model.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue() + _NO_RULE_FILE)
    return bytes(processor.serialized_model_proto())


@functools.cache
def _rules(normalization: str) -> str:
    """Return the rules of a normalization with one more, or "" if it needs none.

    nmt_nfkc_cf lowers the case of all letters but U+0130, the Turkish I with a dot, whose Turkish lower case is "i".
    """
    # Releases of sentencepiece before 0.2.2 cannot tell the rules.
    if normalization != "nmt_nfkc_cf" or not hasattr(sentencepiece.SentencePieceNormalizer, "Decompile"):
        return ""
    named = sentencepiece.SentencePieceNormalizer(rule_name=normalization).Decompile()
    rules = {source: target.replace("\u0130", "i") for source, target in named} | {"\u0130": "i"}
    codes = ((" ".join(f"{ord(each):X}" for each in text) for text in rule) for rule in rules.items())
    return "".join("\t".join(rule) + "\n" for rule in codes)


def _training_failure(message: str, size: int) -> str:
    if found := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"a vocabulary of {size} pieces is too large for this text, which gives {found[1]} at most: "
            f"use --vocabulary-size {found[1]} or less, or give more text"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {size} pieces is too small for this text, whose characters alone take {found[1]}: "
            f"use --vocabulary-size {found[1]} or more, or a lower --character-coverage"
        )
    return f"sentencepiece could not train a vocabulary of {size} pieces: {message}"


def load_sentencepiece(model: Path | str | bytes) -> sentencepiece.SentencePieceProcessor:
    """Load a sentencepiece model from a file or from serialized bytes."""
    name = "the given bytes" if isinstance(model, bytes) else str(model)
    try:
        serialized = model if isinstance(model, bytes) else read_regular(Path(model))
    except OSError as error:
        raise CorpusError(f"cannot read the sentencepiece model {name}: {error.strerror}") from error
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        pieces = processor.get_piece_size() if serialized else 0
    except RuntimeError as error:
        raise CorpusError(f"{name} is not a sentencepiece model") from error
    if pieces == 0:
        raise CorpusError(f"{name} is not a sentencepiece model: it has no pieces")
    return processor


def dictionary_symbols(processor: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Return the symbols of ``dict.txt``: all pieces except unknown and control pieces, in the model's order."""
    symbols = [processor.id_to_piece(spm_id) for spm_id in _ordinary_ids(processor)]
    special = {*FAIRSEQ_SYMBOLS, MASK_SYMBOL}
    for symbol in symbols:
        if symbol in special:
            raise CorpusError(
                f"the sentencepiece model has {symbol!r} as an ordinary piece, which collides with the special symbol "
                "of that name: train the model without that piece, or with it as a control symbol"
            )
        if symbol.split() != [symbol]:
            raise CorpusError(
                f"the sentencepiece model has the piece {symbol!r}, which contains whitespace and so cannot be in "
                "fairseq's dictionary: train the model without it"
            )
    return symbols


def _ordinary_ids(processor: sentencepiece.SentencePieceProcessor) -> list[int]:
    pieces = range(processor.get_piece_size())
    return [piece for piece in pieces if not processor.is_control(piece) and not processor.is_unknown(piece)]


def dictionary_text(processor: sentencepiece.SentencePieceProcessor) -> str:
    """Return the content of ``dict.txt`` for a model: a symbol and the count 1 on every line."""
    return "".join(f"{symbol} 1\n" for symbol in dictionary_symbols(processor))


class TextEncoder(Protocol):
    """An encoder from text to token ids of a fairseq dictionary; see also ``open_encoder``.

    The model's token ids are mapped to fairseq's ids directly, not by string, so "<s>" in a text is ordinary text.
    """

    dictionary_size: int  # symbols of fairseq's dictionary without <mask>
    number_of: NDArray[np.unsignedinteger]  # [tokens of the model] fairseq's id of each token
    encoded: Encoded  # counts of everything that was encoded; see ``text.unknown.check_known``
    unknown: int = UNKNOWN  # id of the token for unknown text
    space: int = -1  # id of the token that is only the start of a word, if there is one; it stands before <unk>, too
    word_prefix: str = ""  # a text with this prefix is encoded as a word after a space
    files: tuple[Path, ...] = ()  # vocabulary files, if the encoder was opened from a folder

    def model_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's tokens as the model's own ids."""

    def encode_with_offsets(self, text: str) -> AlignedTokens:
        """Encode one text, without special symbols around it, and align its tokens with its characters."""

    def encode_words(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return each text's token ids <int64>[T], without special symbols, and the tokens' word indices <int64>[T]."""

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """The integer type that fairseq-preprocess uses for a dictionary of this size."""
        return np.uint16 if self.dictionary_size < 65_500 else np.uint32

    def encode_flat(self, texts: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]:
        """Encode texts, each ending with </s>; return tokens <uint16 or uint32>[all], and lengths <int32>[texts]."""
        encoded = self.model_tokens(texts)
        lengths = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded)) + np.int32(1)
        flat = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()) - len(encoded))
        ids = np.full(len(flat) + len(encoded), END_OF_SENTENCE, dtype=self.dtype)
        is_text = np.ones(len(ids), dtype=bool)
        is_text[np.cumsum(lengths, dtype=np.int64) - 1] = False
        ids[is_text] = self.number_of[flat]
        rows = np.searchsorted(np.cumsum(lengths, dtype=np.int64), np.flatnonzero(ids == self.unknown), side="right")
        self.encoded.add(texts, len(flat) - int(np.count_nonzero(ids == self.space)), rows)
        return ids, lengths

    def numbers(self, text: str, tokens: Sequence[int]) -> NDArray[np.int64]:
        """Return the ids of the dictionary <int64>[T] for a text's tokens of the model, and count them."""
        ids = self.number_of[np.array(tokens, dtype=np.int64)].astype(np.int64)
        unknown, spaces = (int(np.count_nonzero(ids == each)) for each in (self.unknown, self.space))
        self.encoded.add([text], len(ids) - spaces, np.zeros(unknown, dtype=np.int64))
        return ids

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.unsignedinteger]]:
        """Encode each text into an array <uint16 or uint32>[T] that ends with </s>."""
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, np.cumsum(lengths, dtype=np.int64)[:-1])


class FairseqEncoder(TextEncoder):
    """An encoder that uses a sentencepiece model.

    ``symbols`` are from a dict.txt that has all pieces of the model, possibly in another order and with extra symbols.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, symbols: Sequence[str] | None = None) -> None:
        pieces = dictionary_symbols(processor)
        places = {symbol: place for place, symbol in enumerate(pieces if symbols is None else symbols)}
        missing = [piece for piece in pieces if piece not in places]
        if missing:
            raise CorpusError(
                f"{DICTIONARY_FILE} lacks {len(missing)} pieces of {MODEL_FILE}, such as {missing[0]!r}, so the two do "
                "not belong together: take both from one folder"
            )
        self.dictionary_size = len(FAIRSEQ_SYMBOLS) + len(places)
        self.processor, self.encoded = processor, Encoded()
        self.number_of = np.full(processor.get_piece_size(), UNKNOWN, dtype=self.dtype)
        self.number_of[_ordinary_ids(processor)] = [len(FAIRSEQ_SYMBOLS) + places[piece] for piece in pieces]
        if WORD_START in places:
            self.space = len(FAIRSEQ_SYMBOLS) + places[WORD_START]

    def model_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``TextEncoder``."""
        return list(self.processor.encode(list(texts), out_type=int))

    def encode_words(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """See ``TextEncoder``; words are separated by white space."""
        pieces = self.processor.encode(list(texts), out_type=str)
        words = [np.cumsum([piece.startswith(WORD_START) for piece in each], dtype=np.int64) for each in pieces]
        return list(zip(map(self.numbers, texts, self.model_tokens(texts)), words, strict=True))

    def encode_with_offsets(self, text: str) -> AlignedTokens:
        """See ``TextEncoder``; raise ValueError for a model with byte fallback."""
        text = encodable(text)
        tokens = self.numbers(text, self.processor.encode(text, out_type=int))
        return AlignedTokens(tokens, *sentencepiece_spans(self.processor, text))


def vocabulary_files(folder: Path) -> list[Path]:
    """Return a vocabulary's files: dictionary, sentencepiece model or tokenizer, and source files kept by an import."""
    encoders = [folder / name for name in (MODEL_FILE, TOKENIZER_FILE) if (folder / name).is_file()]
    if not (folder / DICTIONARY_FILE).is_file() or not encoders:
        raise CorpusError(
            f"there is no {DICTIONARY_FILE} in {folder} with {MODEL_FILE} or {TOKENIZER_FILE} next to it: give a "
            "folder that `maelm prepare corpus` or `maelm import` wrote"
        )
    kept = [folder / SOURCE_FILE] if (folder / SOURCE_FILE).is_file() else []
    return [folder / DICTIONARY_FILE, encoders[0], *kept]


def open_encoder(folder: Path) -> TextEncoder:
    """Open the text encoder of a folder; it returns token ids of the folder's dictionary."""
    dictionary, file, *kept = vocabulary_files(folder)
    lines = dictionary.read_text(encoding="utf-8").split("\n")
    symbols = [line.rsplit(" ", 1)[0] for line in lines if line]
    encoder: TextEncoder
    if file.name == MODEL_FILE:
        encoder = FairseqEncoder(load_sentencepiece(file), symbols)
    else:
        encoder = TokenizerEncoder(file, len(symbols))
    encoder.files = (dictionary, file, *kept)
    return encoder


class TokenizerEncoder(TextEncoder):
    """A text encoder that wraps a tokenizer.json with the same token ids as a dict.txt of ``symbols`` symbols.

    The attribute ``tokenizer`` treats the spelling of our special symbols as ordinary text; a model that has them as
    pieces anyway gives <unk>. All other tokens that were added to the source are single tokens, as in the source.
    """

    def __init__(self, path: Path, symbols: int) -> None:
        self.dictionary_size = mask = len(FAIRSEQ_SYMBOLS) + symbols
        roles = [*range(len(FAIRSEQ_SYMBOLS)), mask]
        self.tokenizer = open_tokenizer_file(path, roles)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        largest = max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        if largest != mask or mask not in special:
            found = f"it is {largest}" if largest != mask else f"token {mask} is not special"
            raise CorpusError(
                f"{path} and {DICTIONARY_FILE} do not belong together: by {DICTIONARY_FILE} the tokenizer's highest "
                f"token id must be {mask}, that of the special token <mask>, but {found}. Take both files from one "
                "`maelm import`"
            )
        # A byte-pair encoding may encode a word differently at the start of a text and after a space.
        self.word_prefix = " "
        self.number_of = np.arange(mask + 1, dtype=self.dtype)
        # Special symbols are never tokens of ordinary text, but they are pieces of a unigram model such as XLM-R's, and
        # have the highest scores there.
        self.number_of[roles] = UNKNOWN
        # Some sources, such as MPNet, have another token for unknown text.
        own = self.tokenizer.token_to_id(getattr(self.tokenizer.model, "unk_token", None) or "")
        self.encoded, self.unknown = Encoded(), UNKNOWN if own is None else int(self.number_of[own])
        space = self.tokenizer.token_to_id(WORD_START)
        self.space = -1 if space is None else space

    def model_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``TextEncoder``."""
        # One text at a time: a batch would start threads, which are unsafe in forked workers.
        return [encode_text(self.tokenizer, text).ids for text in texts]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """See ``TextEncoder``; the tokenizer defines words, and may count punctuation marks as words."""
        encoded = [encode_text(self.tokenizer, text) for text in texts]
        return [(self.numbers(text, each.ids), np.array(each.word_ids, np.int64)) for text, each in zip(texts, encoded)]

    def encode_with_offsets(self, text: str) -> AlignedTokens:
        """See ``TextEncoder``."""
        text = encodable(text)
        encoded = encode_text(self.tokenizer, text)
        return AlignedTokens(self.numbers(text, encoded.ids), *tokenizer_spans(encoded.offsets, text))
