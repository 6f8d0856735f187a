"""Text to tokens and back with the corpus' sentencepiece model, also around <mask>."""

import re
from typing import List, Sequence

import numpy as np
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from fairseq_maelm.corpus.vocabulary import MASK_SYMBOL as MASK

# Two fields of sentencepiece's normaliser in protocol buffer form, add_dummy_prefix and remove_extra_whitespaces, both
# off. Bytes appended to a serialised message override its fields, so this needs no protocol buffer library.
_CONTINUE_TEXT = b"\x1a\x04\x18\x00\x20\x00"

_WHITE_SPACE = re.compile(r"\s+")


class Tokenizer:
    """A sentencepiece model whose pieces are looked up in a fairseq dictionary.

    Args:
        model_path: file of the sentencepiece model.
        dictionary: fairseq's, made from the model, with ``<mask>``.
    """

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
