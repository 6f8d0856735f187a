"""Sentence tasks for the commands: names, options of `maelm prepare sentences` and ``maelm predict``, recipes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.kinds import Kind
from fairseq_maelm.finetuning.tables import Columns, ColumnsWithId, delimiter
from fairseq_maelm.launch.recipes import FineTuningRecipe, recipe_names
from fairseq_maelm.options import UsageError, add_settings, existing_path, option
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

SHORTEST = 6  # number of tokens of the shortest pair of texts, special tokens included


@dataclass(frozen=True, kw_only=True)
class SentenceSettings(Columns):
    """The options of ``maelm prepare sentences``."""

    train: Path = option(help="table to train on", type=existing_path, metavar="TABLE")
    valid: Path | None = option(
        None, help="table for choosing the checkpoint (default: a part of --train)", type=existing_path, metavar="TABLE"
    )
    test: Path | None = option(
        None, help="table to test on, with or without labels", type=existing_path, metavar="TABLE"
    )
    skip_invalid: bool = option(
        False, help="skip and count invalid rows, such as those without a text, instead of stopping at the first",
    )  # fmt: skip
    regression: bool = option(False, help="treat the labels as numbers")
    label_separator: str | None = option(
        None, help="character between the labels of a row, such as ';', for rows with any number of labels: an empty "
        "cell means none (lists in JSON need no separator)",
        metavar="CHARACTER", type=delimiter,
    )  # fmt: skip
    valid_fraction: float | None = option(
        None, help="without --valid: fraction of the training examples to hold out for validation, the same for each "
        "label (default: 0.1)",
        minimum=0, maximum=1,
    )  # fmt: skip
    seed: int | None = option(None, help="random seed for drawing the held-out examples (default: 1)", minimum=0)
    max_length: int | None = option(
        None,
        help="maximum number of tokens in an example; longer examples are truncated (default: no limit here; training "
        "truncates)",
        minimum=SHORTEST,
    )

    def __post_init__(self) -> None:
        if self.regression and self.label_separator is not None:
            raise UsageError("--label-separator is for classes, and --regression for numbers: omit one of them")
        for name, default in (("valid_fraction", 0.1), ("seed", 1)):
            given = getattr(self, name)
            if given is not None and self.valid is not None:
                raise UsageError(f"--valid gives the examples, so --{name.replace('_', '-')} has no effect: omit it")
            object.__setattr__(self, name, default if given is None else given)

    @property
    def tables(self) -> dict[str, Path]:
        """The given tables, by split."""
        given = {split: getattr(self, split) for split in ("train", "valid", "test")}
        return {split: path for split, path in given.items() if path is not None}


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("task") in recipe_names(FineTuningRecipe):
        return str(manifest["task"])
    if "label_separator" in manifest:
        return "sentences_multilabel"
    if (folder / "input0" / "train.idx").is_file():
        return "sentences" if (folder / "label" / DICTIONARY_FILE).is_file() else "sentences_regression"
    return None


KIND = Kind(("maelm_sentences", "sentence_prediction"), partial(add_settings, settings=ColumnsWithId), _recipe)
