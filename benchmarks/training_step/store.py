"""Results on disk: one JSON file with a list of side-by-side runs."""

import json
from pathlib import Path
from typing import Any

FORMAT = 1


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs of a result file; none if there is no file.

    Raises:
        ValueError: if the file is not one of these.
    """
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no result of this benchmark, or of another version of it")
    return list(content["runs"])


def write_runs(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write a result file whole, or leave the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    half.write_text(json.dumps({"format": FORMAT, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


def merge(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs of several lists, each once, in the order of their dates.

    Runs are not mixed: contenders are compared only with those that were measured in turn with them.
    """
    found = {json.dumps(run, sort_keys=True): run for runs in lists for run in runs}
    return sorted(found.values(), key=lambda run: str(run["date"]))


def is_measured(runs: list[dict[str, Any]], settings: dict[str, Any], contenders: tuple[str, ...]) -> bool:
    """Whether some run has these settings and all these contenders, none of them failed."""
    return any(
        run["settings"] == settings
        and all("error" not in run["contenders"].get(name, {"error": "missing"}) for name in contenders)
        for run in runs
    )
