#!/usr/bin/env python3
"""Write a recipe's folder and the options of fairseq-train that it gives, one word a line; for run.sh."""

import argparse
import sys
from pathlib import Path

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.finetuning.recipe import Recipe, read_recipe
from fairseq_maelm.train_command import words_of


def open_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        SystemExit: says what is wrong with the file.
    """
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.yaml")))
        raise SystemExit(f"there is no recipe {path}: the tasks are {known}")
    try:
        return read_recipe(path)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def words(recipe: Recipe) -> list[str]:
    """Return the options as words; what is true is a flag."""
    metric = {"best-checkpoint-metric": recipe.metric, "maximize-best-checkpoint-metric": True}
    return words_of({**recipe.options, **metric})


def main() -> None:
    """Read the command line and write the options, with the task's folder in front."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    recipe = open_recipe(parser.parse_args().recipe)
    sys.stdout.write("".join(f"{word}\n" for word in [recipe.data, *words(recipe)]))


if __name__ == "__main__":
    main()
