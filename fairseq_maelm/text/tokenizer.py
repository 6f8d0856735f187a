"""Text to tokens and back with the corpus' sentencepiece model or an imported tokenizer, also around <mask>."""

import os
import re
from typing import List, Optional, Sequence, Union

import numpy as np
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from fairseq_maelm.text.imported import TOKENIZER_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK

# Two fields of sentencepiece's normalizer in protocol buffer form, add_dummy_prefix and remove_extra_whitespaces, both
# off. Bytes appended to a serialized message override its fields, so this needs no protocol buffer library.
_CONTINUE_TEXT = b"\x1a\x04\x18\x00\x20\x00"

_WHITE_SPACE = re.compile(r"\s+")


class Tokenizer:
    """A sentencepiece model whose pieces are looked up in a fairseq dictionary.

    Args:
        model_path: file of the sentencepiece model.
        dictionary: fairseq's, made from the model, with ``<mask>``.
    """

    mask_text = MASK

    def __init__(self, model_path: str, dictionary: Dictionary) -> None:
        with open(model_path, "rb") as file:
            model = file.read()
        self.dictionary = dictionary
        self._start = SentencePieceProcessor(model_proto=model)
        self._middle = SentencePieceProcessor(model_proto=model + _CONTINUE_TEXT)
        pieces = range(self._start.get_piece_size())
        self._token_of_piece = np.array(
            [
                dictionary.unk()
                if self._start.is_unknown(piece) or self._start.is_control(piece)
                else dictionary.index(self._start.id_to_piece(piece))
                for piece in pieces
            ]
        )
        self._piece_of_token = {int(token): piece for piece, token in enumerate(self._token_of_piece)}
        self._piece_of_token[dictionary.unk()] = self._start.unk_id()

    @property
    def processor(self) -> SentencePieceProcessor:
        """The sentencepiece model, for texts that hold no <mask>."""
        return self._start

    @property
    def token_of_piece(self) -> np.ndarray:
        """<int64>[pieces], the symbol of the dictionary for each piece of the model."""
        return self._token_of_piece

    def encode(self, text: str) -> List[int]:
        """Encode text without special symbols around it.

        ``<mask>`` in the text becomes the mask symbol; white space before it belongs to it, and the text after it goes
        on as it does within a sentence: "<mask>." gives the piece "." that follows a word, not the one that starts one.
        Anything else that looks like a special symbol is ordinary text.
        """
        first, *others = _WHITE_SPACE.sub(" ", text).split(MASK)
        tokens = self._tokens(self._start.encode(first.rstrip(" ")))
        for _place, segment in enumerate(others):
            tokens.append(self.dictionary.index(MASK))
            # A space at the end belongs to the next <mask>, or ends the text.
            tokens += self._tokens(self._middle.encode(segment.rstrip(" ")))
        return tokens

    def encode_part(self, text: str, starts_word: bool) -> List[int]:
        """Encode a part of a text by itself; ``<mask>`` and the like in it are ordinary text.

        Args:
            text: any white space at its ends is left out.
            starts_word: whether a space, or the start of the text, stands before it.
        """
        processor = self._start if starts_word else self._middle
        return self._tokens(processor.encode(" ".join(text.split())))

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; ``<mask>`` is spelled out, other special symbols are left out."""
        mask = self.dictionary.index(MASK)
        parts: List[str] = []
        run: List[int] = []
        for token in list(tokens) + [mask]:
            if token != mask:
                run.append(int(token))
                continue
            parts.append(self._decode_run(run, starts_text=not parts))
            run = []
        return f" {MASK}".join(parts).strip()

    def _decode_run(self, run: List[int], starts_text: bool) -> str:
        processor = self._start if starts_text else self._middle
        return processor.decode([self._piece_of_token[token] for token in run if token in self._piece_of_token])

    def _tokens(self, pieces: List[int]) -> List[int]:
        return self._token_of_piece[pieces].tolist() if pieces else []


class ImportedTokenizer:
    """A tokenizer of the library tokenizers whose numbers are those of a fairseq dictionary.

    Args:
        path: of its tokenizer.json.
        dictionary: fairseq's, with ``<mask>``.

    Attributes:
        mask_text: how the tokenizer itself spells a mask.

    Raises:
        ValueError: if the library is not installed, or the tokenizer does not belong to the dictionary.
    """

    def __init__(self, path: str, dictionary: Dictionary) -> None:
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError as error:
            raise ValueError(f"{path} needs the package tokenizers: pip install 'fairseq_maelm[hf]'") from error
        self.dictionary = dictionary
        self._tokenizer = Loaded.from_file(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = {*range(dictionary.nspecial), dictionary.index(MASK)}
        named = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if largest >= len(dictionary) or dictionary.index(MASK) not in named:
            raise ValueError(
                f"{path} and dict.txt do not belong together: token {dictionary.index(MASK)} must be {MASK} and the "
                f"last one, and the tokenizer goes up to {largest}. Both must come from one `maelm import`"
            )
        self.mask_text = str(self._tokenizer.id_to_token(dictionary.index(MASK)))
        self._special = special - {dictionary.unk(), dictionary.index(MASK)}

    def encode(self, text: str) -> List[int]:
        """Encode text as the tokenizer's own library does, without special symbols around it.

        Where ``<mask>`` stands in the text, other special symbols that it spells are read as such too; elsewhere they
        are ordinary text.
        """
        masked = MASK in text
        self._tokenizer.encode_special_tokens = not masked
        if masked:
            text = text.replace(MASK, self.mask_text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text; ``<mask>`` is spelled out, other special symbols are left out."""
        kept = [int(token) for token in tokens if int(token) not in self._special]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        # A mask takes the space before it along, as in the text that it was encoded from.
        return re.sub(rf"\s*{re.escape(self.mask_text)}", f" {MASK}", text).strip()


TextTokenizer = Union[Tokenizer, ImportedTokenizer]


def open_tokenizer(path: str, dictionary: Dictionary) -> TextTokenizer:
    """The tokenizer of a data folder's sentencepiece model or tokenizer.json; arguments as of ``Tokenizer``."""
    return ImportedTokenizer(path, dictionary) if path.endswith(".json") else Tokenizer(path, dictionary)


def find_imported_tokenizer(places: Sequence[str]) -> Optional[str]:
    """The first tokenizer.json with its dict.txt and without a sentencepiece model beside it, or None."""
    for place in places:
        names = (TOKENIZER_FILE, DICTIONARY_FILE, MODEL_FILE)
        there = {name for name in names if os.path.exists(os.path.join(place, name))}
        if there == {TOKENIZER_FILE, DICTIONARY_FILE}:
            return os.path.join(place, TOKENIZER_FILE)
    return None
