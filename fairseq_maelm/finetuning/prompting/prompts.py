"""Prompts (templates with label words): those for GLUE (Gao et al., 2021) and user-defined ones; their token ids."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from fairseq_maelm.files.atomic import parse_json
from fairseq_maelm.finetuning.prompting.template import Part, Segment, parse_template, render, sentences_of
from fairseq_maelm.models.label_metrics import OF_CLASSES, OF_NUMBERS
from fairseq_maelm.models.labels import Classes, Numbers
from fairseq_maelm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Words(Classes):
    """Classes with a word each; scores are those of ``label_scores``."""

    metrics: tuple[str, ...] = OF_CLASSES


@dataclass(frozen=True)
class Between(Numbers):
    """Numbers between two bounds, with a word each; scores <float>[B, 2] are those of ``label_scores``."""

    metrics: tuple[str, ...] = OF_NUMBERS
    is_likelihood = True

    def loss(self, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the divergence of the words' probabilities from a number's, summed over examples, in nats.

        It is KL(q || p) of the words' probabilities p from q = (1 - t, t), t = (y - low) / (high - low), as in the
        equation of Gao et al.; their code instead passes q to a loss that expects log q (their issue 45).
        """
        log_probabilities = F.log_softmax(scores, dim=-1)
        upper = (target.to(log_probabilities) - self.bounds[0]) / (self.bounds[1] - self.bounds[0])
        return F.kl_div(log_probabilities, torch.stack([1 - upper, upper], dim=1), reduction="sum")

    def found(self, scores: Tensor) -> Tensor:
        """Return low + (high - low) p(second word) <float>[B]."""
        return self.bounds[0] + (self.bounds[1] - self.bounds[0]) * scores.softmax(dim=-1)[:, 1]


@dataclass(frozen=True)
class Prompt:
    """A task as a cloze test."""

    name: str
    template: str  # in the language of ``fairseq_maelm.finetuning.prompting.template``
    # Label -> word, in the order of the classes; of two classes, the second is F1's positive one. For regression, the
    # words for the lower and the upper bound.
    label_words: Mapping[str, str]
    metrics: tuple[str, ...] = ("accuracy",)  # the first one chooses the best checkpoint
    bounds: tuple[float, float] | None = None  # of the number, for regression
    max_length: int = 128  # tokens of a sequence, with special symbols, template and masks
    first_sentence_limit: int | None = None  # tokens of the first sentence

    def __post_init__(self) -> None:
        parse_template(self.template)
        words, bounds = self.label_words, self.bounds
        known = OF_CLASSES if bounds is None else OF_NUMBERS
        wrong = ""
        if "${" in self.to_json():
            wrong = "'${' is not allowed, because it is special in fairseq's configuration"
        elif len(words) < 2 or not all(word.strip() for word in words.values()):
            wrong = "label_words must map at least two labels to a word each"
        elif bounds is not None and (len(words) != 2 or not bounds[0] < bounds[1]):
            wrong = (
                "regression needs two label words and two bounds in ascending order, not "
                f"{len(words)} words and {list(bounds)}"
            )
        elif not self.metrics or not set(self.metrics) <= set(known):
            wrong = f"metrics {list(self.metrics)} must be a selection of {', '.join(known)}"
        elif "f1" in self.metrics and len(words) != 2:
            wrong = f"f1 needs two label words, not {len(words)}"
        elif self.max_length < 2 or (self.first_sentence_limit is not None and self.first_sentence_limit < 1):
            wrong = "max_length and first_sentence_limit must be positive"
        if wrong:
            raise ValueError(f"prompt {self.name!r}: {wrong}")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The template's parts."""
        return parse_template(self.template)

    @property
    def sentences(self) -> int:
        """The number of sentences per example."""
        return sentences_of(self.parts)

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the classes."""
        return list(self.label_words)

    @property
    def answers(self) -> Words | Between:
        """What predictions stand for."""
        if self.bounds is not None:
            return Between(bounds=self.bounds, metrics=self.metrics)
        return Words(tuple(self.label_words), self.labels[1], self.metrics)

    def to_json(self) -> str:
        """Return the prompt as a line of JSON that ``find_prompt`` can read."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})


def find_prompt(description: str) -> Prompt:
    """Return a prompt, given the name of a built-in prompt, the path of a YAML or JSON file, or JSON text."""
    if description in BUILT_IN:
        return BUILT_IN[description]
    path = Path(description)
    text: str | bytes
    if description.lstrip().startswith("{"):
        text, place, name, is_json = description, "the prompt", "prompt", True
    elif path.suffix in (".yaml", ".yml", ".json") and path.is_file():
        text, place, name, is_json = path.read_bytes(), str(path), path.stem, path.suffix == ".json"
    else:
        raise ValueError(
            f"there is no prompt {description!r}: give one of {', '.join(BUILT_IN)}, or a .yaml or .json file"
        )
    try:
        # The base loader keeps all values as text; others turn the words Yes and No into booleans.
        content = parse_json(text, place) if is_json else yaml.load(text, yaml.BaseLoader)
    except (RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{place} cannot be read: {error}") from error
    return _prompt_of(content, name)


def _prompt_of(description: Any, name: str) -> Prompt:
    """Make a prompt from the content of a file; numbers may be strings."""
    fields = Prompt.__dataclass_fields__
    if not isinstance(description, Mapping):
        raise ValueError(f"prompt {name!r} must be a mapping with template and label_words")
    unknown = sorted(set(description) - set(fields))
    missing = sorted({"template", "label_words"} - set(description))
    if unknown or missing:
        wrong = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
        raise ValueError(f"prompt {name!r}: {wrong}; the fields are {', '.join(fields)}")
    words = description["label_words"]
    if not isinstance(words, Mapping) or not all(isinstance(word, str) for word in words.values()):
        raise ValueError(f"prompt {name!r}: label_words must map each label to a word, such as '0': terrible")
    values = {"name": name, **description, "label_words": {str(label): word for label, word in words.items()}}
    for field, convert in _CONVERSIONS.items():
        if values.get(field) is not None:
            try:
                values[field] = convert(values[field])
            except (TypeError, ValueError):
                raise ValueError(f"prompt {name!r}: {field} cannot be {values[field]!r}") from None
    return Prompt(**values)


def _bounds(value: Any) -> tuple[float, float]:
    low, high = value
    return float(low), float(high)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "metrics": lambda value: (value,) if isinstance(value, str) else tuple(value),
    "bounds": _bounds,
    "max_length": int,
    "first_sentence_limit": int,
}


_TABLE = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
BUILT_IN = {name: _prompt_of(fields, name) for name, fields in yaml.load(_TABLE, yaml.BaseLoader).items()}


class Prompter:
    """Turns examples into sequences of at most ``max_length`` tokens (default: the prompt's ``max_length``).

    ``pieces`` are the token ids of each label word; ``mask_counts`` are the distinct lengths of label words in tokens,
    ascending. An example has one sequence per length.
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
