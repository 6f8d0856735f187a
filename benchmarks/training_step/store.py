"""Results on disk: one JSON file with a list of side-by-side runs, in medians and ranges (``metrics.summarize``)."""

import json
from pathlib import Path
from typing import Any

FORMAT = 2
# Longest line of a result file that holds more than one value.
_WIDTH = 300


def layout(value: Any, indent: int = 0) -> str:
    """JSON in which tables and lists stand on one line as long as they fit there."""
    text = json.dumps(value)
    if len(text) + indent <= _WIDTH or not isinstance(value, (dict, list)):
        return text
    space = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{space}{json.dumps(name)}: {layout(each, indent + 1)}" for name, each in value.items()]
    else:
        parts = [space + layout(each, indent + 1) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(parts), " " * indent + closing])


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a result file; none if there is no file, a ValueError if it is another kind of file."""
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a result of this version of the benchmark")
    return list(content["runs"])


def write_runs(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write a result file whole, or leave the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    half.write_text(layout({"format": FORMAT, "runs": runs}) + "\n", encoding="utf-8")
    half.replace(path)


def is_measured(runs: list[dict[str, Any]], settings: dict[str, Any], contenders: tuple[str, ...]) -> bool:
    """Return True if a run has these settings and all these contenders, and none failed."""
    return any(
        run["settings"] == settings
        and all("error" not in run["contenders"].get(name, {"error": "missing"}) for name in contenders)
        for run in runs
    )
