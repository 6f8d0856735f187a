"""A task described by a template and label words: the eight GLUE tasks of Gao et al. (2021), and users' own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.prompting.template import Part, parse_template, sentences_of
from fairseq_maelm.finetuning.sentence_metrics import OF_CLASSES, OF_NUMBERS

DEFAULT_MAX_LENGTH = 128


@dataclass(frozen=True)
class Prompt:
    """A task as a cloze.

    Attributes:
        name: of the task.
        template: in the language of ``fairseq_maelm.finetuning.prompting.template``.
        label_words: label -> word, in the order of the classes. F1 is that of the second of two. For regression, the
            word of the lower and that of the upper bound.
        metrics: to report; the first one chooses the best checkpoint.
        bounds: of the number, for regression; None for classification.
        max_length: longest sequence in tokens, special symbols, template and masks included.
        first_sentence_limit: longest first sentence in tokens; None for no limit of its own.
    """

    name: str
    template: str
    label_words: Mapping[str, str]
    metrics: tuple[str, ...] = ("accuracy",)
    bounds: tuple[float, float] | None = None
    max_length: int = DEFAULT_MAX_LENGTH
    first_sentence_limit: int | None = None

    def __post_init__(self) -> None:
        parse_template(self.template)
        if "${" in self.to_json():
            raise ValueError(f"prompt {self.name!r}: '${{' has a meaning of its own in fairseq's configuration")
        self._check_label_words()
        known = OF_CLASSES if self.bounds is None else OF_NUMBERS
        if not self.metrics or not set(self.metrics) <= set(known):
            raise ValueError(f"prompt {self.name!r}: metrics {list(self.metrics)} must be some of {', '.join(known)}")
        if "f1" in self.metrics and len(self.label_words) != 2:
            raise ValueError(f"prompt {self.name!r}: f1 needs two label words, not {len(self.label_words)}")
        if self.max_length < 2 or (self.first_sentence_limit is not None and self.first_sentence_limit < 1):
            raise ValueError(f"prompt {self.name!r}: max_length and first_sentence_limit must be positive")

    def _check_label_words(self) -> None:
        if len(self.label_words) < 2 or not all(word.strip() for word in self.label_words.values()):
            raise ValueError(f"prompt {self.name!r} needs a word for each of two labels at least")
        if self.bounds is None:
            return
        if len(self.label_words) != 2 or not self.bounds[0] < self.bounds[1]:
            raise ValueError(
                f"prompt {self.name!r}: regression needs two label words, of the lower and of the upper bound, and "
                f"bounds in this order, not {len(self.label_words)} words and {list(self.bounds)}"
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The template's parts."""
        return parse_template(self.template)

    @property
    def sentences(self) -> int:
        """Sentences of an example."""
        return sentences_of(self.parts)

    @property
    def labels(self) -> list[str]:
        """In the order of the classes."""
        return list(self.label_words)

    def target(self, label: str) -> float:
        """An example's label as a number: the class, or for regression the number itself."""
        if self.bounds is None:
            if label not in self.label_words:
                raise ValueError(f"the label {label!r} has no word; there are words for {', '.join(self.label_words)}")
            return float(self.labels.index(label))
        try:
            number = float(label)
        except ValueError:
            raise ValueError(f"the label {label!r} is no number, and {self.name} is a regression") from None
        if not self.bounds[0] <= number <= self.bounds[1]:
            raise ValueError(f"the label {label} lies outside {self.bounds[0]:g} to {self.bounds[1]:g}")
        return number

    def to_json(self) -> str:
        """One line that ``find_prompt`` reads."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["label_words"] = dict(self.label_words)
        return json.dumps({name: value for name, value in fields.items() if value is not None})


def find_prompt(description: str) -> Prompt:
    """Find a prompt by what a user gives.

    Args:
        description: name of a built-in task, path of a YAML or JSON file, or the JSON text itself.
    """
    if description in BUILT_IN:
        return BUILT_IN[description]
    if description.lstrip().startswith("{"):
        return prompt_of(_parse(description, "the prompt", "json"), "prompt")
    path = Path(description)
    if path.suffix not in (".yaml", ".yml", ".json") or not path.is_file():
        raise ValueError(
            f"there is no prompt {description!r}: give one of {', '.join(BUILT_IN)}, or a .yaml or .json file"
        )
    return prompt_of(_parse(path.read_text(encoding="utf-8"), str(path), path.suffix[1:]), path.stem)


def prompt_of(description: Any, name: str = "prompt") -> Prompt:
    """Make a prompt of a file's content: a mapping with the fields of ``Prompt``.

    Numbers may be given as text. ``name`` is the one to take when the mapping has none.
    """
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
    values: dict[str, Any] = {"name": name, **description}
    values["label_words"] = {str(label): word for label, word in words.items()}
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


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


_CONVERSIONS: dict[str, Any] = {
    "metrics": _names,
    "bounds": _bounds,
    "max_length": int,
    "first_sentence_limit": int,
}


def _parse(text: str, place: str, kind: str) -> Any:
    try:
        if kind == "json":
            return json.loads(text)
        import yaml  # type: ignore[import-untyped, unused-ignore]

        # Every value stays text: YAML would otherwise take the words Yes and No for booleans.
        return yaml.load(text, yaml.BaseLoader)
    except Exception as error:  # both libraries have errors of their own
        raise ValueError(f"{place} cannot be read: {error}") from error


_SAME = "*cls**sent_0**mask*,*+sentl_1**sep+*"
_FOLLOWS = "*cls**sent-_0*?*mask*,*+sentl_1**sep+*"
_NO_YES = {"0": "No", "1": "Yes"}
_ENTAILMENT = {"not_entailment": "No", "entailment": "Yes"}

# Gao et al. (2021), Table 1 and the settings of their experiments: manual templates and label words.
_OF_GLUE = (
    Prompt("CoLA", "*cls**sent_0*_This_is*mask*.*sep+*", {"0": "incorrect", "1": "correct"}, ("mcc",)),
    Prompt("SST-2", "*cls**sent_0*_It_was*mask*.*sep+*", {"0": "terrible", "1": "great"}),
    Prompt("MRPC", _SAME, _NO_YES, ("f1", "accuracy")),
    Prompt("QQP", _SAME, _NO_YES, ("f1", "accuracy")),
    Prompt("STS-B", _SAME, _NO_YES, ("pearson", "spearman"), bounds=(0.0, 5.0)),
    Prompt("MNLI", _FOLLOWS, {"contradiction": "No", "entailment": "Yes", "neutral": "Maybe"}, max_length=256),
    Prompt("QNLI", _FOLLOWS, _ENTAILMENT),
    Prompt("RTE", _FOLLOWS, _ENTAILMENT, max_length=256, first_sentence_limit=240),
)
BUILT_IN = {prompt.name: prompt for prompt in _OF_GLUE}
