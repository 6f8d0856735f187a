"""What ``maelm finetune`` and ``maelm predict`` need to know about topics; neither torch nor fairseq is imported."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.kinds import Kind


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("topics")
    group.add_argument("--least", type=float, default=0.5, metavar="P", help="minimum probability of a predicted topic")


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    return str(Path(__file__).with_name("recipe.yaml")) if (folder / "labels.txt").is_file() else None


KIND = Kind(("maelm_topics",), _add_options, _recipe)
