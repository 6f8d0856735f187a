"""The vocabulary of a data folder: dict.txt with a sentencepiece model, or with an imported tokenizer.json."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.text.offsets import WORD_START, AlignedTokens, encodable, tokenizer_spans
from fairseq_maelm.text.tokenizer_file import encode_text, open_tokenizer_file
from fairseq_maelm.text.unknown import Encoded
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    FAIRSEQ_SYMBOLS,
    MODEL_FILE,
    SOURCE_FILE,
    UNKNOWN,
    FairseqEncoder,
    TextEncoder,
    load_sentencepiece,
)

# File of the library tokenizers; its token ids equal those of the dict.txt in the same folder.
TOKENIZER_FILE = "tokenizer.json"


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
