"""Sentence tasks for the commands: names, options for ``maelm predict``, recipes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.kinds import Kind
from fairseq_maelm.finetuning.tables import ColumnsWithId
from fairseq_maelm.launch.recipes import FineTuningRecipe, recipe_names
from fairseq_maelm.options import add_settings
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("task") in recipe_names(FineTuningRecipe):
        return str(manifest["task"])
    if "label_separator" in manifest:
        return "sentences_multilabel"
    if (folder / "input0" / "train.idx").is_file():
        return "sentences" if (folder / "label" / DICTIONARY_FILE).is_file() else "sentences_regression"
    return None


KIND = Kind(("maelm_sentences", "sentence_prediction"), partial(add_settings, settings=ColumnsWithId), _recipe)
