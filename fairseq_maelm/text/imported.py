"""The vocabulary of another data folder, such as one of `maelm import`: dict.txt and what encodes text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files import CorpusError
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    END_OF_SENTENCE,
    FAIRSEQ_SYMBOLS,
    MODEL_FILE,
    UNKNOWN,
    FairseqEncoder,
    fairseq_dtype,
    load_sentencepiece,
)

# Of the library tokenizers; its numbers are those of the dict.txt beside it.
TOKENIZER_FILE = "tokenizer.json"


def vocabulary_files(folder: Path) -> list[Path]:
    """The files that a corpus must share to be encoded as another: the dictionary, and the model or tokenizer.

    Raises:
        CorpusError: one of them is missing.
    """
    encoders = [folder / name for name in (MODEL_FILE, TOKENIZER_FILE) if (folder / name).is_file()]
    if not (folder / DICTIONARY_FILE).is_file() or not encoders:
        raise CorpusError(
            f"there is no {DICTIONARY_FILE} in {folder}, or neither {MODEL_FILE} nor {TOKENIZER_FILE}: give a folder "
            "that `maelm prepare` or `maelm import` has written"
        )
    return [folder / DICTIONARY_FILE, encoders[0]]


def open_encoder(folder: Path) -> "TextEncoder":
    """What turns paragraphs into the numbers of the folder's dictionary.

    Raises:
        CorpusError: a file is missing, damaged, or does not belong to the other.
    """
    dictionary, file = vocabulary_files(folder)
    lines = dictionary.read_text(encoding="utf-8").split("\n")
    symbols = [line.rsplit(" ", 1)[0] for line in lines if line]
    if file.name == MODEL_FILE:
        return FairseqEncoder(load_sentencepiece(file), symbols)
    return TokenizerEncoder(file, len(symbols))


class TokenizerEncoder:
    """Turns paragraphs into the numbers of a fairseq dictionary; the counterpart of ``FairseqEncoder``.

    Text that spells special symbols stays ordinary text.

    Args:
        path: of the tokenizer.json.
        symbols: number of symbols in dict.txt.

    Attributes:
        dictionary_size: symbols of fairseq's dictionary without <mask>.
        dtype: the integer type that fairseq-preprocess stores for a dictionary of this size.

    Raises:
        CorpusError: the library is not installed, or the tokenizer does not belong to the dictionary.
    """

    def __init__(self, path: Path, symbols: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise CorpusError(f"{path} needs the package tokenizers: pip install 'fairseq_maelm[hf]'") from error
        self.dictionary_size = len(FAIRSEQ_SYMBOLS) + symbols
        self.dtype = fairseq_dtype(self.dictionary_size)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if largest != self.dictionary_size:
            raise CorpusError(
                f"{path} and {DICTIONARY_FILE} do not belong together: the last token is {largest} and <mask> must be "
                f"{self.dictionary_size}"
            )

    def encode_flat(self, paragraphs: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32]]:
        """Encodes paragraphs one after the other, each ended by </s>; see ``FairseqEncoder.encode_flat``."""
        # One by one: many at a time would start threads in a worker that was forked.
        encoded = [self._tokenizer.encode(each, add_special_tokens=False).ids for each in paragraphs]
        lengths = np.fromiter((len(ids) + 1 for ids in encoded), dtype=np.int32, count=len(encoded))
        flat = [number for ids in encoded for number in (*ids, END_OF_SENTENCE)]
        # The mask symbol is what the model predicts under, and never text.
        flat = [UNKNOWN if number == self.dictionary_size else number for number in flat]
        return np.array(flat, dtype=self.dtype), lengths

    def encode(self, paragraphs: Sequence[str]) -> list[NDArray[np.unsignedinteger]]:
        """Encodes paragraphs into one array <uint16 or uint32>[T] each, which ends with </s>."""
        ids, lengths = self.encode_flat(paragraphs)
        return np.split(ids, np.cumsum(lengths, dtype=np.int64)[:-1])


TextEncoder = FairseqEncoder | TokenizerEncoder
