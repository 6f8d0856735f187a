"""The one rule for texts of which a vocabulary knows too little: encoders count, and commands warn or stop."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files.atomic import CorpusError

logger = logging.getLogger(__name__)

# Above these shares of unknown tokens commands warn and stop. Fewer tokens than this are only warned about: one of a
# few short texts may well consist of signs that a good vocabulary lacks.
_WARNED, _REFUSED, _FEWEST = 0.05, 0.5, 20
# The most examples to name, and the most characters of each.
_SHOWN, _CHARACTERS = 3, 20


@dataclass
class Encoded:
    """What a text encoder has encoded: its tokens without special symbols, and some texts that have unknown ones."""

    tokens: int = 0
    unknown: int = 0
    texts: Iterable[str] = field(default_factory=list)

    def add(self, texts: Sequence[str], tokens: int, rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Count the tokens of texts; ``rows`` has the index of the text of each unknown token."""
        self.tokens += tokens
        self.unknown += len(rows)
        if len(rows) and isinstance(self.texts, list) and len(self.texts) < _SHOWN:
            self.texts += [texts[row] for row in np.unique(rows)[:_SHOWN]]


def check_known(encoder: Any, what: object, allowed: bool, encoded: Encoded | None = None) -> None:
    """Warn about texts with more than 5 % unknown tokens; stop above half of at least 20 unless that is ``allowed``.

    ``what`` names the texts; ``encoded`` are the counts, by default of what the encoder encoded since the last check.
    """
    # The examples are encoded again, which is not to be counted.
    counted, encoder.encoded = encoder.encoded, Encoded()
    encoded = counted if encoded is None else encoded
    share = encoded.unknown / max(1, encoded.tokens)
    if share <= _WARNED:
        return
    examples = list(_examples(encoder, encoded.texts))
    shown = ", ".join(repr(each[:_CHARACTERS]) for each in examples)
    message = (
        f"{what}: the vocabulary does not know {100 * share:.1f} % of the {encoded.tokens:,} tokens"
        f"{', such as ' if shown else ''}{shown}{_remedy(encoder, examples)}"
    )
    if share > _REFUSED and encoded.tokens >= _FEWEST and not allowed:
        raise CorpusError(f"{message}. Give another vocabulary or other texts, or --allow-unknown to go on")
    logger.warning("%s", message)


def _examples(encoder: Any, texts: Iterable[str]) -> Iterator[str]:
    """Yield the first different substrings of texts that are unknown tokens."""
    found: set[str] = set()
    for text in texts:
        aligned = encoder.encode_with_offsets(text)
        for place in np.flatnonzero(aligned.tokens == encoder.unknown):
            example = text[aligned.begin[place] : aligned.end[place]]
            if example and example not in found:
                found.add(example)
                yield example
            if len(found) == _SHOWN:
                return


def _remedy(encoder: Any, examples: list[str]) -> str:
    """Return a hint if the examples are known in another case."""
    for name, changed in (("capitals", str.upper), ("lower case", str.lower)):
        if examples and all(
            encoder.unknown not in encoder.encode_with_offsets(changed(each)).tokens for each in examples
        ):
            return f"; it knows them in {name}"
    return ""
