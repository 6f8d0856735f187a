"""The settings of one corpus preparation: their checks, and what makes two runs the same."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_maelm.corpus.workers import available_cores
from fairseq_maelm.files import CorpusError
from fairseq_maelm.text.vocabulary import PRESETS

DEFAULT_VALID_FRACTION = 0.01
DEFAULT_PRESET = "uncased"


@dataclass(frozen=True)
class PrepareSettings:
    """What to prepare, and how: the options of ``maelm prepare corpus``, which explains them.

    Attributes:
        inputs: files and folders of text.
        tokenizer: a data folder whose dictionary and tokenizer to use instead of training a vocabulary.
        workers: processes; it does not change the result.
    """

    inputs: tuple[Path, ...]
    output: Path
    valid: tuple[Path, ...] = ()
    valid_fraction: float | None = None
    valid_documents: int | None = None
    json_field: str = "text"
    deduplicate: bool = False
    preset: str | None = None
    vocabulary_size: int | None = None
    character_coverage: float | None = None
    sample_megabytes: float | None = None
    sentencepiece_model: Path | None = None
    tokenizer: Path | None = None
    shards: int = 1
    seed: int = 1
    workers: int = field(default_factory=available_cores)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise CorpusError("name at least one input file or folder")
        if self.workers < 1:
            raise CorpusError(f"--workers must be at least 1, not {self.workers}")
        if not 1 <= self.shards <= 100:
            raise CorpusError(f"--shards must lie in 1 ... 100, not {self.shards}")
        self._check_split()
        self._check_vocabulary()

    def _check_split(self) -> None:
        given = [
            name
            for name, value in (
                ("--valid", self.valid or None),
                ("--valid-fraction", self.valid_fraction),
                ("--valid-documents", self.valid_documents),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise CorpusError(f"{' and '.join(given)} exclude each other: give one of them")
        if self.valid_fraction is not None and not 0 < self.valid_fraction < 1:
            raise CorpusError(f"--valid-fraction must lie between 0 and 1, both excluded, not {self.valid_fraction}")
        if self.valid_documents is not None and self.valid_documents < 1:
            raise CorpusError(f"--valid-documents must be at least 1, not {self.valid_documents}")

    def _check_vocabulary(self) -> None:
        given = [name for name in ("tokenizer", "sentencepiece_model") if getattr(self, name) is not None]
        if given:
            names = ("preset", "vocabulary_size", "character_coverage", "sample_megabytes", *given[1:])
            for name in names:
                if getattr(self, name) is not None:
                    raise CorpusError(f"{_option(given[0])} brings a vocabulary, so {_option(name)} has no use")
        if self.preset is not None and self.preset not in PRESETS:
            raise CorpusError(f"--preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if self.vocabulary_size is not None and self.vocabulary_size < 4:
            raise CorpusError(f"--vocabulary-size must be at least 4, not {self.vocabulary_size}")
        if self.character_coverage is not None and not 0.98 <= self.character_coverage <= 1:
            raise CorpusError(
                f"--character-coverage must lie in 0.98 ... 1, sentencepiece's limits, not {self.character_coverage}"
            )
        if self.sample_megabytes is not None and self.sample_megabytes <= 0:
            raise CorpusError(f"--sample-megabytes must be positive, not {self.sample_megabytes}")

    def resolved(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON values, with the defaults filled in; inputs apart."""
        fraction = self.valid_fraction
        if fraction is None and self.valid_documents is None and not self.valid:
            fraction = DEFAULT_VALID_FRACTION
        resolved: dict[str, Any] = {
            "sentencepiece_model": None if self.sentencepiece_model is None else self.sentencepiece_model.name,
            "valid_fraction": fraction,
            "valid_documents": self.valid_documents,
            "json_field": self.json_field,
            "deduplicate": self.deduplicate,
            "shards": self.shards,
            "seed": self.seed,
        }
        if self.tokenizer is not None:
            resolved["tokenizer"] = self.tokenizer.name
        elif self.sentencepiece_model is None:
            preset = PRESETS[self.preset or DEFAULT_PRESET]
            resolved |= {
                "preset": self.preset or DEFAULT_PRESET,
                "vocabulary_size": self.vocabulary_size or preset.size,
                "character_coverage": self.character_coverage or 0.9995,
                "sample_megabytes": self.sample_megabytes or 100.0,
            }
        return resolved


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
