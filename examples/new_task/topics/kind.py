"""What ``maelm finetune`` and ``maelm predict`` need to know about topics; neither torch nor fairseq is imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.kinds import Kind


def _recipe(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    return str(Path(__file__).with_name("recipe.yaml")) if (folder / "labels.txt").is_file() else None


KIND = Kind(("maelm_topics",), recipe=_recipe)
