"""The settings of a corpus preparation and their checks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import vocabulary_folder
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.options import available_cores, existing_path, new_folder, option
from fairseq_maelm.text.vocabulary import PRESETS

_VALID = "validation split (one of)"
_VOCABULARY = "vocabulary"
_DEFAULT_FRACTION = 0.01
_DEFAULT_TRAINING = {"preset": "uncased", "character_coverage": 0.9995, "sample_megabytes": 100.0}
_SIZES = ", ".join(f"{name} {preset.size:,}" for name, preset in PRESETS.items())


@dataclass(frozen=True)
class PrepareSettings:
    """Options of ``maelm prepare corpus``."""

    inputs: tuple[Path, ...] = option(
        help="text files or folders: plain text (one paragraph per line, a blank line between documents) or .jsonl "
        "or FASTA (one document per record), each also as .gz, .xz or .bz2; and files of WikiExtractor",
        positional=True, metavar="INPUT", type=existing_path,
    )  # fmt: skip
    output: Path = option(help="new data folder", metavar="FOLDER", type=new_folder)
    json_field: str = option("text", help="field of a .jsonl record that holds the text", metavar="NAME")
    line_documents: bool = option(False, help="each line of plain text is a document, instead of a paragraph")
    skip_invalid: bool = option(
        False, help="skip and count records of .jsonl and FASTA files without a text, instead of stopping at the first"
    )
    deduplicate: bool = option(
        False,
        help="remove paragraphs that are exact copies; takes about 100 bytes of memory per distinct paragraph",
    )
    seed: int = option(
        1, help="random seed for the split, the shards and the text that the vocabulary is trained on", minimum=0
    )
    workers: int = option(available_cores(), help="number of processes (default: all cores)", minimum=1)
    shards: int = option(
        1, help="number of parts to split the training text into, each in its own folder", minimum=1, maximum=100
    )
    valid_fraction: float | None = option(
        None, help=f"fraction of documents to hold out for validation (default: {_DEFAULT_FRACTION})", above=0, below=1,
        group=_VALID,
    )  # fmt: skip
    valid_documents: int | None = option(
        None, help="number of documents to hold out for validation", minimum=1, group=_VALID
    )
    valid: tuple[Path, ...] = option(
        (), help="validation files or folders", metavar="INPUT", type=existing_path, group=_VALID
    )
    preset: str | None = option(
        None,
        help=f"normalization and number of pieces of a new vocabulary: {_SIZES} (default: uncased); fairseq's "
        "dictionary has 2 symbols more, one of them <mask>",
        choices=tuple(PRESETS),
        group=_VOCABULARY,
    )
    vocabulary_size: int | None = option(
        None, help="number of pieces of a new vocabulary (default: the preset's)", minimum=4, group=_VOCABULARY
    )
    character_coverage: float | None = option(
        None,
        help="fraction of the text's characters that the vocabulary must cover (default: 0.9995)",
        minimum=0.98,  # sentencepiece's limits
        maximum=1.0,
        group=_VOCABULARY,
    )
    sample_megabytes: float | None = option(
        None,
        help="megabytes of text to draw for training the vocabulary (default: 100)",
        minimum=0.001,
        group=_VOCABULARY,
    )
    sentencepiece_model: Path | None = option(
        None,
        help="existing sentencepiece model to use instead of training one",
        metavar="FILE",
        type=existing_path,
        group=_VOCABULARY,
    )
    vocabulary: Path | None = option(
        None,
        help="folder whose dictionary and tokenizer are used instead of new ones: prepared data, a training run, a "
        "result of `maelm import`, or the name of an encoder that comes with this package",
        metavar="FOLDER",
        type=vocabulary_folder,
        group=_VOCABULARY,
    )

    def __post_init__(self) -> None:
        given = [_option(name) for name in ("valid_fraction", "valid_documents") if getattr(self, name) is not None]
        given += ["--valid"] if self.valid else []
        if len(given) > 1:
            raise CorpusError(f"{' and '.join(given)} exclude each other: give only one of them")
        existing = [name for name in ("vocabulary", "sentencepiece_model") if getattr(self, name) is not None]
        for name in (*_DEFAULT_TRAINING, "vocabulary_size", *existing[1:]) if existing else ():
            if getattr(self, name) is not None:
                raise CorpusError(
                    f"{_option(existing[0])} gives a vocabulary, so {_option(name)} has no effect: omit {_option(name)}"
                )

    def resolved(self) -> dict[str, Any]:
        """Return the settings that determine the result, except the inputs, as JSON values with defaults filled in."""
        fraction = self.valid_fraction
        if fraction is None and self.valid_documents is None and not self.valid:
            fraction = _DEFAULT_FRACTION
        kept = ("valid_documents", "json_field", "deduplicate", "shards", "seed")
        resolved: dict[str, Any] = {
            "sentencepiece_model": None if self.sentencepiece_model is None else self.sentencepiece_model.name,
            "valid_fraction": fraction,
            **{name: getattr(self, name) for name in kept},
            # Folders without these options keep their settings.
            **{name: True for name in ("line_documents", "skip_invalid") if getattr(self, name)},
        }
        if self.vocabulary is not None:
            return {**resolved, "vocabulary": self.vocabulary.name}
        if self.sentencepiece_model is None:
            resolved |= {name: getattr(self, name) or default for name, default in _DEFAULT_TRAINING.items()}
            resolved["vocabulary_size"] = self.vocabulary_size or PRESETS[resolved["preset"]].size
        return resolved


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
