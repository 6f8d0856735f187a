"""The kinds of fine-tuning tasks, in which the commands look up what differs between them.

A kind is a folder of this one. Its ``inference.py`` has the function ``predict_input``, which returns ``Predicted`` for
the arguments of ``maelm predict``.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.corpus.tables import ColumnsWithId
from fairseq_maelm.files.conll import add_layout_arguments
from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.finetuning.recipe import RECIPES
from fairseq_maelm.options import add_settings, number
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE
from fairseq_maelm.training.options import names_in


class Kind(NamedTuple):
    """A kind of task."""

    tasks: tuple[str, ...]  # fairseq's names of its tasks
    add_options: Callable[[argparse.ArgumentParser], None]  # declares the options of its predictions
    recipe: Callable[[Path, Mapping[str, Any]], str | None]  # of a prepared folder with a manifest; None for others
    accepts: tuple[str, ...] = ()  # other kinds whose options it accepts too

    def predict_input(self, args: argparse.Namespace) -> Any:
        """Predict the input of ``maelm predict``."""
        name = next(name for name, kind in KINDS.items() if kind is self)
        return importlib.import_module(f"{__package__}.{name}.inference").predict_input(args)


def _add_table_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ColumnsWithId)


def _add_squad_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions of SQuAD 2.0, which may have no answer")
    add_threshold(group)
    group.add_argument(
        "--null-odds", type=Path, metavar="FILE",
        help="new JSON file that maps each question's id to the score of no answer minus the score of the best "
        "answer, in logits",
    )  # fmt: skip


def add_threshold(parser: Any) -> None:
    """Declare ``--threshold``."""
    parser.add_argument(
        "--threshold", type=number(float), metavar="X",
        help="largest value, in logits, of the score of no answer minus the score of the best answer at which that "
        "answer is given; inf always gives an answer (default: the checkpoint's --null-threshold, usually 0)",
    )  # fmt: skip


def _add_tagging_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("labeled words (default layout: that of the training files)")
    add_layout_arguments(group)
    group.add_argument(
        "--keep-labels", action="store_true",
        help="keep the file's labels, and add the predictions as a new last column, or in CoNLL-U as the attribute "
        "Predicted in the column MISC",
    )  # fmt: skip


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts: pretrained checkpoints, and those fine-tuned with a prompt")
    group.add_argument(
        "--prompt", metavar="PROMPT",
        help=f"prompt: one of {', '.join(TASKS)}, or a .yaml or .json file (default: the checkpoint's prompt, if any)",
    )  # fmt: skip
    group.add_argument(
        "--several-pieces", action="store_true",
        help="allow label words of several pieces; a word's score is the mean log-probability of its pieces",
    )  # fmt: skip


def _sentences_recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("task") in names_in(RECIPES):
        return str(manifest["task"])
    if (folder / "input0" / "train.idx").is_file():
        return "sentences" if (folder / "label" / DICTIONARY_FILE).is_file() else "sentences_regression"
    return None


def _squad_recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("kind") != "squad" or "valid" not in manifest["splits"]:
        return None
    return "squad" if manifest["splits"]["valid"]["version"] == "1.1" else "squad2"


def _tagging_recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("kind") != "tagging":
        return None
    return "tagging" if manifest["tagging"]["scheme"] == "plain" else "tagging_entities"


KINDS = {
    "sentences": Kind(("maelm_sentences", "sentence_prediction"), _add_table_options, _sentences_recipe),
    "squad": Kind(("maelm_squad",), _add_squad_options, _squad_recipe),
    "tagging": Kind(("maelm_tagging",), _add_tagging_options, _tagging_recipe),
    "prompting": Kind(("maelm_prompt", "maelm"), _add_prompt_options, lambda folder, manifest: None, ("sentences",)),
}
"""Folder -> kind."""
