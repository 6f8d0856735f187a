"""Tokenize prompts and truncate them to the maximum length."""

from collections.abc import Sequence

import numpy as np

from fairseq_maelm.finetuning.prompting.prompts import Prompt
from fairseq_maelm.finetuning.prompting.template import Segment, render
from fairseq_maelm.text.tokenizer import Tokenizer


class Prompter:
    """Turns examples into sequences of at most ``max_length`` tokens (default: the prompt's ``max_length``).

    Attributes:
        pieces: token ids of each label word.
        mask_counts: the distinct lengths of label words in tokens, ascending; each example has one sequence per length.
    """

    def __init__(
        self, prompt: Prompt, tokenizer: Tokenizer, several_pieces: bool = False, max_length: int | None = None
    ) -> None:
        self.prompt, self.tokenizer = prompt, tokenizer
        self.pieces = self._label_words(several_pieces)
        self.mask_counts = sorted({len(tokens) for tokens in self.pieces})
        self.max_length = prompt.max_length if max_length is None else max_length
        dictionary = tokenizer.dictionary
        self._symbols = {"cls": dictionary.bos(), "sep": dictionary.eos(), "mask": dictionary.index("<mask>")}

    def _label_words(self, several_pieces: bool) -> list[tuple[int, ...]]:
        """Return the token ids of each label word, tokenized as if it followed a space."""
        dictionary, words, found, several = self.tokenizer.dictionary, self.prompt.label_words, [], []
        for label, word in words.items():
            tokens = tuple(self.tokenizer.encode_part(word, starts_word=True))
            if not tokens or dictionary.unk() in tokens:
                raise ValueError(f"the label word {word!r} of {label!r} has characters that the vocabulary lacks")
            if len(tokens) > 1:
                several.append(f"{word!r} is split into {' '.join(dictionary[token] for token in tokens)}")
            found.append(tokens)
        if several and not several_pieces:
            raise ValueError(
                f"label words must be single pieces of the vocabulary: {', '.join(several)}. Choose other words, or "
                "score them by the mean log-probability of their pieces (--several-pieces)"
            )
        if len(set(found)) < len(found):
            listed = ", ".join(f"{label}: {word}" for label, word in words.items())
            raise ValueError(f"two labels have the same word in this vocabulary: {listed}. Choose other words")
        return found

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Render and tokenize one example; return a sequence <int64>[n] for each number of masks in ``mask_counts``.

        A label word of n pieces needs n masks. Until a sequence fits, its longest sentence (of equally long ones, the
        last) loses its last token; the template, the masks and </s> are never cut. The code of Gao et al. instead cuts
        the end of the sequence, and fails if this removes the mask.
        """
        return [self._sequence(render(self.prompt.parts, sentences, masks)) for masks in self.mask_counts]

    def _sequence(self, segments: Sequence[Segment]) -> np.ndarray:
        tokens = [self._tokens(segment) for segment in segments]
        limit = self.prompt.first_sentence_limit
        kept = {
            place: len(tokens[place]) if limit is None or segment.number else min(limit, len(tokens[place]))
            for place, segment in enumerate(segments)
            if segment.kind == "sentence"
        }
        fixed = sum(len(part) for place, part in enumerate(tokens) if place not in kept)
        if fixed >= self.max_length:
            raise ValueError(
                f"the template of {self.prompt.name} alone takes {fixed} tokens, which leaves no room for sentences: "
                f"raise the maximum length, which is {self.max_length}"
            )
        while fixed + sum(kept.values()) > self.max_length:
            kept[max(kept, key=lambda place: (kept[place], place))] -= 1
        return np.concatenate([part[: kept.get(place, len(part))] for place, part in enumerate(tokens)])

    def _tokens(self, segment: Segment) -> np.ndarray:
        if segment.kind in self._symbols:
            return np.array([self._symbols[segment.kind]])
        return np.array(self.tokenizer.encode_part(segment.text, segment.starts_word), dtype=np.int64)
