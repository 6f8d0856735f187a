"""The results of all models as JSON, CSV and figures."""

import csv
import io
from pathlib import Path
from typing import Any

from fairseq_maelm.analysis.figures import Result, save_figures
from fairseq_maelm.files.atomic import write_bytes, write_json


def write_report(results: list[Result], folder: Path) -> None:
    """Write results.json, ranks.csv, subspace.csv, theorem.csv and figures/ into ``folder``.

    Raises:
        ValueError: matplotlib is missing.
    """
    write_json(folder / "results.json", results)
    settings = {name: _cell(value) for name, value in results[0]["settings"].items()}
    for name, rows in tables(results).items():
        stream = io.StringIO(newline="")
        if rows:
            writer = csv.DictWriter(stream, fieldnames=list({**rows[0], **settings}))
            writer.writeheader()
            writer.writerows({**row, **settings} for row in rows)
        write_bytes(folder / f"{name}.csv", stream.getvalue().encode("utf-8"))
    save_figures(results, folder / "figures")


def tables(results: list[Result]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables "ranks", "subspace" and "theorem" of all models, without spectra and angles."""
    lists: dict[str, list[dict[str, Any]]] = {"ranks": [], "subspace": [], "theorem": []}
    for result in results:
        model = {"model": result["name"], "kind": result["kind"]}
        for row in result["ranks"]:
            lists["ranks"].append(model | {key: value for key, value in row.items() if key != "singular_values"})
        for row in result["subspace"]:
            angles = row["principal_angles"]
            flat = {key: value for key, value in row.items() if key != "principal_angles"}
            lists["subspace"].append(model | flat | {"smallest_angle": min(angles), "largest_angle": max(angles)})
        for weights in ("trained", "random"):
            for row in result["theorem"].get(weights, []):
                lists["theorem"].append(model | {"weights": weights} | row)
    return lists


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
