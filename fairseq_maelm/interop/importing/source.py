"""What every kind of source gives to the import, and what it is refused with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class SourceVocabulary:
    """The source's vocabulary in the order of a fairseq dictionary.

    Attributes:
        order: V times the source's number of our symbol 0, 1, 2, ...
        symbols: the lines of dict.txt, V - 5 of them: our symbols without the four in front and <mask>.
        files: what text is encoded with, file name -> content; empty where the source brings nothing of the kind.
        tokenize: text to the source's numbers without special symbols, by the source's own tokenizer, or None.
    """

    order: list[int]
    symbols: list[str]
    files: dict[str, bytes]
    tokenize: Callable[[str], list[int]] | None = None


@dataclass(frozen=True)
class Source:
    """A model that can be imported exactly.

    Attributes:
        options: of the model ``maelm``, name -> value: sizes, positions, buckets.
        task_options: of the task ``maelm``: what the encoder saw in pretraining.
        architecture: "encoder", "masked-lm", or that of its fine-tuned head.
        weights: our parameters by our names; tables of the vocabulary in the source's order.
        vocabulary: the order of the vocabulary, and the tokenizer.
        compute: the source's own model, for the comparison: tokens <int64>[B, S] in the source's numbers, and
            <bool>[B, S] False at padding, to what ``checkpoint_outputs`` returns, masks' scores in the source's order.
        facts: to be recorded with the result.
    """

    options: dict[str, Any]
    task_options: dict[str, Any]
    architecture: str
    weights: dict[str, Tensor]
    vocabulary: SourceVocabulary
    compute: Callable[[Tensor, Tensor], dict[str, Tensor]]
    facts: dict[str, Any]


def refuse(path: Any, reason: str) -> ValueError:
    """Return the error that says why a source cannot be imported."""
    return ValueError(f"{path} cannot be imported exactly: {reason}")
