"""The vocabulary of another data folder, such as one of `maelm import`: dict.txt and what encodes text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files import CorpusError
from fairseq_maelm.text.offsets import AlignedTokens, encodable, tokenizer_spans
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    FAIRSEQ_SYMBOLS,
    MODEL_FILE,
    UNKNOWN,
    FairseqEncoder,
    TextEncoder,
    load_sentencepiece,
)

# Of the library tokenizers; its numbers are those of the dict.txt beside it.
TOKENIZER_FILE = "tokenizer.json"


def vocabulary_files(folder: Path) -> list[Path]:
    """Return the files that a corpus must share to be encoded as another: the dictionary, and the model or tokenizer.

    Raises:
        CorpusError: one of them is missing.
    """
    encoders = [folder / name for name in (MODEL_FILE, TOKENIZER_FILE) if (folder / name).is_file()]
    if not (folder / DICTIONARY_FILE).is_file() or not encoders:
        raise CorpusError(
            f"there is no {DICTIONARY_FILE} in {folder}, or neither {MODEL_FILE} nor {TOKENIZER_FILE}: give a folder "
            "that `maelm prepare corpus` or `maelm import` has written"
        )
    return [folder / DICTIONARY_FILE, encoders[0]]


def open_encoder(folder: Path) -> TextEncoder:
    """Open what turns text into the numbers of the folder's dictionary.

    Raises:
        CorpusError: a file is missing, damaged, or does not belong to the other.
    """
    dictionary, file = vocabulary_files(folder)
    lines = dictionary.read_text(encoding="utf-8").split("\n")
    symbols = [line.rsplit(" ", 1)[0] for line in lines if line]
    encoder: TextEncoder
    if file.name == MODEL_FILE:
        encoder = FairseqEncoder(load_sentencepiece(file), symbols)
    else:
        encoder = TokenizerEncoder(file, len(symbols))
    encoder.files = (dictionary, file)
    return encoder


class TokenizerEncoder(TextEncoder):
    """Encodes with a tokenizer.json of the library tokenizers, whose numbers are those of a dict.txt of N symbols.

    Its ``tokenizer`` reads special symbols in text as ordinary text.

    Raises:
        CorpusError: the library is not installed, or the tokenizer does not belong to the dictionary.
    """

    def __init__(self, path: Path, symbols: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise CorpusError(f"{path} needs the package tokenizers: pip install 'fairseq_maelm[hf]'") from error
        self.dictionary_size = mask = len(FAIRSEQ_SYMBOLS) + symbols
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        largest = max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        if largest != mask or mask not in special:
            raise CorpusError(
                f"{path} and {DICTIONARY_FILE} do not belong together: token {mask} must be <mask> and the last one, "
                f"and the tokenizer goes up to {largest}. Both must come from one `maelm import`"
            )
        # Byte pairs are others at the start of a text than behind a space.
        self.word_prefix = " "
        self.number_of = np.arange(mask + 1, dtype=self.dtype)
        # The mask symbol is what the model predicts under, and never text.
        self.number_of[mask] = UNKNOWN

    def model_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``TextEncoder``."""
        # One by one: many at a time would start threads in a worker that was forked.
        return [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """See ``TextEncoder``; words are the tokenizer's own, to which a punctuation mark may be one."""
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [
            (self.number_of[np.array(each.ids, dtype=np.int64)].astype(np.int64), np.array(each.word_ids, np.int64))
            for each in encoded
        ]

    def encode_with_offsets(self, text: str) -> AlignedTokens:
        """See ``TextEncoder``."""
        text = encodable(text)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        tokens = self.number_of[np.array(encoded.ids, dtype=np.int64)].astype(np.int64)
        return AlignedTokens(tokens, *tokenizer_spans(encoded.offsets, text))
