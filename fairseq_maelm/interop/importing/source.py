"""The common representation of models to be imported."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class SourceVocabulary:
    """The source's vocabulary in the order of a fairseq dictionary."""

    order: list[int]  # [V] map from our ids to the source's ids
    symbols: list[str]  # [V - 5] the symbols of dict.txt: ours without the first four and <mask>
    files: dict[str, bytes]  # sentencepiece model or tokenizer, file name -> content; empty if there is none
    tokenize: Callable[[str], list[int]] | None = None  # the source's tokenizer, without special symbols
    added: list[str] = field(default_factory=list)  # tokens that were added to it, other than our special symbols
    own: list[str] = field(default_factory=list)  # texts made of its other tokens


@dataclass(frozen=True)
class Source:
    """A model that can be imported exactly."""

    options: dict[str, Any]  # of the model ``maelm``, name -> value
    architecture: str  # "encoder", "masked-lm", or the architecture of its fine-tuned head
    weights: dict[str, Tensor]  # by our names; rows of the vocabulary are in the source's order
    vocabulary: SourceVocabulary
    compute: Callable[[Tensor], dict[str, Tensor]]  # ``checkpoint_outputs`` of the source's model, with our ids
    facts: dict[str, Any]  # to be recorded with the result
    files: dict[str, bytes] = field(default_factory=dict)  # to be given back by an export; see ``SourceFiles``
    kept_weights: dict[str, Tensor] = field(default_factory=dict)  # likewise, without prefix
    heads: dict[str, Tensor] = field(default_factory=dict)  # likewise, of heads that our model lacks


# The options of a task that continues the pretraining of an MLM, whose encoder sees <mask>.
MLM_TASK: dict[str, Any] = {"masked_input": "kept", "leave_unmasked_prob": 0.1, "random_token_prob": 0.1}


def refuse(path: Any, reason: str) -> ValueError:
    """Return the error to raise if a source cannot be imported, with the reason."""
    return ValueError(f"{path} cannot be imported exactly: {reason}")


def without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by their names without the prefix "module.", which torch's DataParallel puts before all names."""
    if not all(name.startswith("module.") for name in weights):
        return weights
    return {name.removeprefix("module."): weight for name, weight in weights.items()}
