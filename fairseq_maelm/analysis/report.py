"""The results of all models as JSON, CSV and one self-contained HTML page."""

import csv
import html
import io
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fairseq_maelm.analysis.figures import Result, figures_of, save_figures
from fairseq_maelm.files import write_bytes, write_json

_STYLE = (
    "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}"
    "th{background:#eee}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
)


def write_report(results: list[Result], folder: Path) -> None:
    """Write results.json, ranks.csv, subspace.csv, theorem.csv, figures/ and report.html into ``folder``.

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
    drawings = save_figures(results, folder / "figures")
    write_bytes(folder / "report.html", page(results, drawings).encode("utf-8"))


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


def page(results: list[Result], drawings: dict[str, str]) -> str:
    """Return the HTML page: models, settings, inline figures with captions, and tables of numbers."""
    settings = [[name, _cell(value)] for name, value in results[0]["settings"].items()]
    parts = ["<h1>Representations, layer by layer</h1>", _models(results), _table(["setting", "value"], settings)]
    for name, figure in figures_of(results).items():
        # HTML does not allow an XML declaration inside it.
        drawing = drawings[name][drawings[name].index("<svg") :]
        parts.append(f"<h2>{html.escape(name.replace('_', ' '))}</h2><p>{html.escape(figure.caption)}</p>{drawing}")
    parts += ["<h2>Effective ranks</h2>", _rank_table(results), _theorem_sentence(results)]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>maelm analyze</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(header: list[str], rows: list[list[Any]]) -> str:
    return str(tabulate(rows, header, tablefmt="html", disable_numparse=True))


def _models(results: list[Result]) -> str:
    rows = [
        [result["name"], result["kind"], result["num_layers"], result["width"], f"{result['text_tokens']:,}"]
        + [", ".join(f"{key} {value}" for key, value in result["model_settings"].items())]
        for result in results
    ]
    return _table(["model", "kind", "layers", "width", "tokens", "settings"], rows)


def _rank_table(results: list[Result]) -> str:
    """Return the table of effective ranks: a row for each layer; a column for each model, condition and token set."""
    cells = {
        ((result["name"], row["condition"], row["token_set"]), row["layer"]): row["effective_rank"]
        for result in results
        for row in result["ranks"]
    }
    columns = list(dict.fromkeys(column for column, _ in cells))
    header = ["layer", *(f"{name}: {condition} input, {tokens} tokens" for name, condition, tokens in columns)]
    layers = sorted({layer for _, layer in cells})
    return _table(header, [[layer, *(cells.get((column, layer), "") for column in columns)] for layer in layers])


def _theorem_sentence(results: list[Result]) -> str:
    rows = tables(results)["theorem"]
    if not rows:
        return ""
    held = sum(row["holds"] for row in rows)
    return (
        f"<p>The inequality |R'| &le; 4&epsilon;|R|&sup3; holds in {held} of {len(rows)} attention layers. "
        f"In {sum(row['proved'] for row in rows)} of them the logits are in the range for which it is proved.</p>"
    )
