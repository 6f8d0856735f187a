"""The kinds of fine-tuning tasks; commands look up here how they differ.

A kind is a folder of this one that has a module ``kind.py`` with a ``KIND``. Adding the folder adds the kind.
"""

import argparse
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


def no_recipe(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Return None: no prepared folder belongs to this kind."""
    return None


class Kind(NamedTuple):
    """A kind of task.

    Attributes:
        tasks: fairseq's names of its tasks.
        add_options: declares the options of its predictions.
        recipe: returns the recipe's name or path for a prepared folder with a manifest, None for a folder of another
            kind.
        accepts: other kinds whose options ``maelm predict`` accepts too.
    """

    tasks: tuple[str, ...]
    add_options: Callable[[argparse.ArgumentParser], None]
    recipe: Callable[[Path, Mapping[str, Any]], str | None] = no_recipe
    accepts: tuple[str, ...] = ()


def predict_input(name: str, args: argparse.Namespace) -> Any:
    """Predict the input of ``maelm predict`` by a kind's ``inference.py``, which imports torch."""
    return importlib.import_module(f"{__package__}.{name}.inference").predict_input(args)


@cache
def kinds() -> dict[str, Kind]:
    """Return the kinds by the names of their folders."""
    names = [path.parent.name for path in sorted(Path(__file__).parent.glob("*/kind.py"))]
    return {name: importlib.import_module(f"{__package__}.{name}.kind").KIND for name in names}
