"""SQuAD tasks for the commands: names, options for ``maelm predict``, recipes."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.kinds import Kind
from fairseq_maelm.options import number


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions of SQuAD 2.0, which may have no answer")
    add_threshold(group)
    group.add_argument(
        "--null-odds", type=Path, metavar="FILE",
        help="new JSON file that maps each question's id to the score of 'no answer' minus that of the best answer, "
        "in logits",
    )  # fmt: skip


def add_threshold(parser: Any) -> None:
    """Declare ``--threshold``."""
    parser.add_argument(
        "--threshold", type=number(float), metavar="X",
        help="predict 'no answer' if its score exceeds that of the best answer by more than this, in logits; with inf "
        "an answer is always predicted (default: the checkpoint's --null-threshold, usually 0)",
    )  # fmt: skip


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    if manifest.get("kind") != "squad" or "valid" not in manifest["splits"]:
        return None
    return "squad" if manifest["splits"]["valid"]["version"] == "1.1" else "squad2"


KIND = Kind(("maelm_squad",), _add_options, _recipe)
