"""Tagging tasks for the commands: names, options for ``maelm predict``, recipes."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.files.conll import add_layout_arguments
from fairseq_maelm.finetuning.kinds import Kind


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("labeled words (default layout: that of the training files)")
    add_layout_arguments(group)
    group.add_argument(
        "--keep-labels", action="store_true",
        help="keep the file's labels, and add the predictions as a new last column, or in CoNLL-U as the attribute "
        "Predicted in the column MISC",
    )  # fmt: skip


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("kind") != "tagging":
        return None
    return "tagging" if manifest["tagging"]["scheme"] == "plain" else "tagging_entities"


KIND = Kind(("maelm_tagging",), _add_options, _recipe)
