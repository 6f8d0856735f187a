"""Conversion of text with masks to tokens and back, for the hub interface."""

import re
from collections.abc import Sequence
from pathlib import Path

from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from fairseq_maelm.files.atomic import read_regular
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.tokenizer_file import encode_text
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK
from fairseq_maelm.text.vocabulary import FairseqEncoder, TokenizerEncoder, load_sentencepiece

# A serialized protocol buffer that sets the normalizer's add_dummy_prefix and remove_extra_whitespaces to false.
# Appending it to a serialized model overrides these fields, without a protocol buffer library.
_CONTINUE_TEXT = b"\x1a\x04\x18\x00\x20\x00"


class Tokenizer:
    """A sentencepiece model and its fairseq dictionary with ``<mask>``.

    ``encoder`` encodes texts without masks; ``mask_text`` is the string that stands for a mask.
    """

    mask_text = MASK

    def __init__(self, model_path: str, dictionary: Dictionary) -> None:
        model = read_regular(Path(model_path))
        self.dictionary = dictionary
        symbols = dictionary.symbols[dictionary.nspecial : dictionary.index(MASK)]
        self.encoder = FairseqEncoder(load_sentencepiece(model), symbols)
        self._start = self.encoder.processor
        self._middle = SentencePieceProcessor(model_proto=model + _CONTINUE_TEXT)
        self._piece_of_token = {token: piece for piece, token in enumerate(self.encoder.number_of.tolist())}
        self._piece_of_token[dictionary.unk()] = self._start.unk_id()

    def encode(self, text: str) -> list[int]:
        """Clean and encode text, without special symbols around it.

        ``<mask>`` in the text, with any white space before it, becomes the mask symbol. Text directly after a mask does
        not start a word: in "<mask>.", the piece "." continues a word. Other special symbols, such as "</s>", are
        ordinary text.
        """
        first, *others = clean_text(text).split(MASK)
        tokens = self._tokens(self._start, first.rstrip(" "))
        for segment in others:
            # A space at the end belongs to the next <mask> or to the end of the text.
            tokens += [self.dictionary.index(MASK), *self._tokens(self._middle, segment.rstrip(" "))]
        return tokens

    def encode_part(self, text: str, starts_word: bool) -> list[int]:
        """Encode a part of a text separately, without leading or trailing white space; ``<mask>`` is ordinary text.

        ``starts_word`` is true if the part follows a space or starts the text.
        """
        return self._tokens(self._start if starts_word else self._middle, " ".join(text.split()))

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens into text with ``<mask>`` spelled out and without other special symbols."""
        mask = self.dictionary.index(MASK)
        parts: list[str] = []
        run: list[int] = []
        for token in [*map(int, tokens), mask]:
            if token != mask:
                run.append(token)
                continue
            processor = self._middle if parts else self._start
            parts.append(processor.decode([self._piece_of_token[each] for each in run if each in self._piece_of_token]))
            run = []
        return f" {MASK}".join(parts).strip()

    def _tokens(self, processor: SentencePieceProcessor, text: str) -> list[int]:
        return self.encoder.numbers(text, processor.encode(text)).tolist()


class ImportedTokenizer:
    """A tokenizer.json with the same token ids as a fairseq dictionary; same interface as ``Tokenizer``."""

    def __init__(self, path: str, dictionary: Dictionary) -> None:
        mask = dictionary.index(MASK)
        self.dictionary = dictionary
        self.encoder = TokenizerEncoder(Path(path), mask - dictionary.nspecial)
        self._tokenizer = self.encoder.tokenizer
        self.mask_text = str(self._tokenizer.id_to_token(mask))
        self._left_out = set(range(dictionary.nspecial)) - {dictionary.unk()}

    def encode(self, text: str) -> list[int]:
        """Encode text with the library tokenizers, without special symbols around it.

        In a text with ``<mask>``, or the source's own spelling of it, other special symbols such as "</s>" are
        recognized too; in texts without masks they are ordinary text.
        """
        if MASK not in text and self.mask_text not in text:
            return self.encoder.numbers(text, self.encoder.model_tokens([text])[0]).tolist()
        self._tokenizer.encode_special_tokens = False
        try:
            ids = list(encode_text(self._tokenizer, text.replace(MASK, self.mask_text)).ids)
            self.encoder.encoded.add([text], len(ids), [0] * ids.count(self.encoder.unknown))
            return ids
        finally:
            self._tokenizer.encode_special_tokens = True

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens into text with ``<mask>`` spelled out and without other special symbols."""
        kept = [int(token) for token in tokens if int(token) not in self._left_out]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        # A mask's token includes the space before it.
        return re.sub(rf"\s*{re.escape(self.mask_text)}", f" {MASK}", text).strip()

    def pair_template(self) -> tuple[int, bool]:
        """Return how the source joins two texts: the number of </s> between them, and whether the types differ."""
        joined = self._tokenizer.encode("a", "a")
        return max(1, joined.ids.count(self.dictionary.eos()) - 1), len(set(joined.type_ids)) > 1


TextTokenizer = Tokenizer | ImportedTokenizer


def open_tokenizer(path: Path, dictionary: Dictionary) -> TextTokenizer:
    """Open a sentencepiece model or a tokenizer.json, depending on the file's suffix."""
    kind = ImportedTokenizer if path.suffix == ".json" else Tokenizer
    return kind(str(path), dictionary)
