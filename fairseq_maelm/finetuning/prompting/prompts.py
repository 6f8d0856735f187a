"""Prompts (templates with label words): those for GLUE (Gao et al., 2021) and user-defined ones."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_maelm.files.atomic import parse_json
from fairseq_maelm.finetuning.dataset_metrics import OF_CLASSES, OF_NUMBERS
from fairseq_maelm.finetuning.prompting.template import Part, parse_template, sentences_of
from fairseq_maelm.models.labels import Classes, Numbers


@dataclass(frozen=True)
class Prompt:
    """A task as a cloze test.

    Attributes:
        name: name of the task.
        template: a template in the language of ``fairseq_maelm.finetuning.prompting.template``.
        label_words: label -> word, in the order of the classes; for two classes, F1's positive class is the second.
            For regression, the words for the lower and the upper bound.
        metrics: metrics to report; the first one chooses the best checkpoint.
        bounds: bounds of the number, for regression; None for classification.
        max_length: maximum number of tokens of a sequence, with special symbols, template and masks.
        first_sentence_limit: maximum number of tokens of the first sentence, or None.
    """

    name: str
    template: str
    label_words: Mapping[str, str]
    metrics: tuple[str, ...] = ("accuracy",)
    bounds: tuple[float, float] | None = None
    max_length: int = 128
    first_sentence_limit: int | None = None

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
    def answers(self) -> Classes | Numbers:
        """What predictions stand for."""
        return Classes(tuple(self.label_words), self.labels[1]) if self.bounds is None else Numbers()

    def target(self, label: Any, place: str) -> float:
        """Convert a label to its class index or, for regression, its number; ``place`` is for error messages."""
        if label is None:
            raise ValueError(f"{place} has no label")
        number = float(self.answers.target(label, place))
        if self.bounds is not None and not self.bounds[0] <= number <= self.bounds[1]:
            raise ValueError(f"{place}: the label {label} must be between {self.bounds[0]:g} and {self.bounds[1]:g}")
        return number

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
