"""The registry of kinds of fine-tuning tasks: what commands need to know about each kind.

A kind is a subfolder with a module ``kind.py`` that defines ``KIND``. No other registration is needed.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of task."""

    tasks: tuple[str, ...]  # names in fairseq
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None  # for ``maelm predict``
    # From a prepared folder and its manifest to the name or path of its recipe, or None for a folder of another kind.
    recipe: Callable[[Path, Mapping[str, Any]], str | None] = lambda folder, manifest: None
    accepts: tuple[str, ...] = ()  # other kinds whose options ``maelm predict`` accepts too


def predict_input(name: str, args: argparse.Namespace) -> Any:
    """Open the checkpoint, and return the ``Predicted`` of ``predict_input`` in the kind's ``inference.py``."""
    # These import torch and fairseq.
    from fairseq_maelm.models.hub import open_checkpoint
    from fairseq_maelm.text.unknown import check_known

    inference = importlib.import_module(f"{__package__}.{name}.inference")
    hub = open_checkpoint(args.checkpoint, args.vocabulary, args.device)
    predicted = inference.predict_input(hub, args)
    check_known(hub.tokenizer.encoder, args.input, args.allow_unknown)
    return predicted


@cache
def kinds() -> dict[str, Kind]:
    """Return the kinds as a dict, folder name -> kind."""
    names = [path.parent.name for path in sorted(Path(__file__).parent.glob("*/kind.py"))]
    return {name: importlib.import_module(f"{__package__}.{name}.kind").KIND for name in names}
