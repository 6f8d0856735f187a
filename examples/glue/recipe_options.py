#!/usr/bin/env python3
"""Write the options of fairseq-train that a recipe gives, one word a line; for run.sh."""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

REQUIRED = ("task", "data", "metric", "options", "search")


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe.

    Raises:
        SystemExit: says what is wrong with the file.
    """
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.yaml")))
        raise SystemExit(f"there is no recipe {path}: the tasks are {known}")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise SystemExit(f"{path} is no YAML: {error}") from error
    missing = [name for name in REQUIRED if not isinstance(recipe, dict) or name not in recipe]
    if missing:
        raise SystemExit(f"{path} is no recipe: it lacks {', '.join(missing)}")
    return recipe


def words(recipe: dict[str, Any]) -> list[str]:
    """Return the options as words; what is true is a flag."""
    options = {
        **recipe["options"],
        "best-checkpoint-metric": recipe["metric"],
        "maximize-best-checkpoint-metric": True,
    }
    return [
        word
        for name, value in options.items()
        if value is not False
        for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]


def main() -> None:
    """Read the command line and write the options, with the task's folder in front."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    recipe = read_recipe(parser.parse_args().recipe)
    sys.stdout.write("".join(f"{word}\n" for word in [str(recipe["data"]), *words(recipe)]))


if __name__ == "__main__":
    main()
