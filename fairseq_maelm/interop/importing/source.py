"""What every kind of source gives to the import, and what it is refused with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from torch import Tensor


class Reference(NamedTuple):
    """The source's own model, for the comparison.

    Attributes:
        encode: tokens <int64>[B, S] in the source's numbers, padded on the right, to last states <float>[B, S, D].
        predict: states <float>[N, D] to logits <float>[N, V] in the source's order, or None where they do
            not follow from a token's state alone.
        fill: tokens with masks, as for ``encode``, to logits <float>[M, V] of the masks, or None.
        score: tokens to the outputs of a fine-tuned head, <float>[B, classes] or <float>[B, S, outputs], or None.
    """

    encode: Callable[[Tensor], Tensor]
    predict: Optional[Callable[[Tensor], Tensor]] = None
    fill: Optional[Callable[[Tensor], Tensor]] = None
    score: Optional[Callable[[Tensor], Tensor]] = None


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
    tokenize: Optional[Callable[[str], list[int]]] = None

    @property
    def is_reordered(self) -> bool:
        """Whether any symbol has another number here than in the source."""
        return self.order != list(range(len(self.order)))


@dataclass(frozen=True)
class Source:
    """A model that can be imported exactly.

    Attributes:
        kind: what it is, for people.
        options: of the model ``maelm``, name -> value: sizes, positions, buckets.
        task_options: of the task ``maelm``: what the encoder saw in pretraining.
        weights: our parameters by our names; tables of the vocabulary in the source's order. Without ``lm_head.*``
            where the source has no such head.
        vocabulary: the order of the vocabulary, and the tokenizer.
        reference: the source's own model.
        facts: to be recorded with the result.
    """

    kind: str
    options: dict[str, Any]
    task_options: dict[str, Any]
    weights: dict[str, Tensor]
    vocabulary: SourceVocabulary
    reference: Reference
    facts: dict[str, Any] = field(default_factory=dict)


def refuse(path: Any, reason: str) -> ValueError:
    """The error that says why a source cannot be imported."""
    return ValueError(f"{path} cannot be imported exactly: {reason}")
