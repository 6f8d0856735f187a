"""The page: figures, tables and what was run, in one file that needs no other."""

import base64
import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plan import RANDOM, Plan
from summary import LOSS, PRIMARY, best_random

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.studies.tables import markdown_table

_STYLE = (
    "body{font-family:sans-serif;max-width:64em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse;margin:1em 0;font-size:.85em}"
    "td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}"
    "th{background:#eee}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)
# Of the figure with all measures.
_COLUMNS = 3
# Measures in which less is better.
_LOWER = (LOSS,)

Section = tuple[str, str, list[str], list[list[str]]]


def write(plan: Plan, results: dict[str, Any], output: Path) -> None:
    """Write results.md, page.html and the figures curves.png and compute.png."""
    parts = sections(plan, results)
    write_bytes(output / "results.md", markdown(results["title"], parts).encode())
    draw_curves(results, output / "curves.png")
    draw_compute(plan, results, output / "compute.png")
    body = [f"<h1>{html.escape(results['title'])}</h1>"]
    for name, caption in (
        ("compute.png", "Each measure against the compute of pretraining, with 95 % intervals over pretraining seeds."),
        ("curves.png", "Loss on held-out text with 15 % of the tokens masked, against tokens, operations and seconds."),
    ):
        picture = base64.b64encode((output / name).read_bytes()).decode()
        image = f'<img alt="{name}" src="data:image/png;base64,{picture}">'
        body.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    for heading, words, header, rows in parts:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        body.append(f"<h2>{html.escape(heading)}</h2><p>{html.escape(words)}</p><table><tr>{head}</tr>{lines}</table>")
    head = f'<meta charset="utf-8"><title>{html.escape(results["title"])}</title><style>{_STYLE}</style>'
    page = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    write_bytes(output / "page.html", page.encode())


def markdown(title: str, parts: Sequence[Section]) -> str:
    """Return the tables in Markdown."""
    text = [f"# {title}"]
    for heading, words, header, rows in parts:
        text += [f"## {heading}", words, markdown_table(header, rows)]
    return "\n\n".join(text) + "\n"


def sections(plan: Plan, results: dict[str, Any]) -> list[Section]:
    """Return heading, sentences, header and rows of each table."""
    found = _strength(plan, results)
    for budget, rows in results["table"].items():
        measures = list(dict.fromkeys(measure for cells in rows.values() for measure in cells))
        header = ["", *rows]
        lines = [[_title(plan, each), *(_cell(cells, each) for cells in rows.values())] for each in measures]
        words = "Means over pretraining seeds with 95 % intervals (Student's t)."
        found.append((f"{budget} FLOP", words, header, lines))
    words = (
        "Mean difference with its 95 % interval: over pairs of pretrainings with equal seeds (paired t), or over the "
        "examples of the primary tasks, which says nothing about other seeds."
    )
    found.append(("Differences at equal operations", words, *_differences(plan, results)))
    found.append(_equal(results))
    header = ["", "updates", "tokens", "FLOP", "seconds in training", "bits"]
    rows = [
        [
            run["name"],
            f"{run['updates']:,}",
            f"{run['tokens']:,}",
            f"{run['flop']:.2e}",
            f"{run['seconds']:.0f}",
            f"{run['measures'][LOSS]:.3f}",
        ]
        for run in results["runs"]
    ]
    found.append(("Pretrainings", "Equal operations, counted with encoder, decoder, head and optimizer.", header, rows))
    trials = [[trial["method"], f"{trial['loss']:.3f}"] for trial in results["trials"]]
    found.append(("Choices", "Bits on held-out text; the lowest of each method was taken.", ["", "bits"], trials))
    return found


def _strength(plan: Plan, results: dict[str, Any]) -> list[Section]:
    """Compare the first method with encoders that others have measured, if there is a common measure."""
    first, table, known = next(iter(plan.methods)), results["table"], plan.content["known"]
    own = {f"{first}, {budget} FLOP": rows[first] for budget, rows in table.items() if first in rows}
    measures = dict.fromkeys(measure for encoder in known["encoders"].values() for measure in encoder)
    measures = [measure for measure in measures if any(measure in cells for cells in own.values())]
    rows = [[name, *(_cell(cells, measure) for measure in measures)] for name, cells in own.items()]
    rows += [[RANDOM, *(_number(best_random(table, measure)) for measure in measures)]]
    for name, encoder in known["encoders"].items():
        if any(measure in encoder for measure in measures):
            rows.append([name, *(_number(encoder.get(measure)) for measure in measures)])
    header = ["", *(_title(plan, measure) for measure in measures)]
    return [(f"How strong {first} is here", known["words"], header, rows)] if measures else []


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _equal(results: dict[str, Any]) -> Section:
    words = (
        "As far as the method that gets least far with a budget; between checkpoints interpolated. Only that method's "
        "learning rate has fallen to its end. Time is that of updates measured in turn on a quiet machine."
    )
    header = ["FLOP of the budget", "equal", "up to", "method", "bits", "primary measure"]
    rows = []
    for own in results["equal"]:
        cells = [_cell(own["measures"], measure) for measure in (LOSS, PRIMARY)]
        rows.append([own["budget"], own["axis"], f"{own['limit']:,.4g}", own["method"], *cells])
    return "Equal updates, operations and time", words, header, rows


def _title(plan: Plan, measure: str) -> str:
    if measure == LOSS:
        return "bits, 15 % masked"
    if measure == PRIMARY:
        return " and ".join(plan.content["primary"])
    own = plan.tasks.get(measure, {}).get("metric", "")
    return f"{measure} ({own})" if own else measure


def _cell(cells: dict[str, dict[str, Any]], measure: str) -> str:
    value, digits = cells.get(measure), 3 if measure == LOSS else 1
    if value is None:
        return ""
    middle = f"{value['mean']:.{digits}f}"
    return middle if value["low"] is None else f"{middle} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"


def _differences(plan: Plan, results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for own in results["differences"]:
        column = f"{own['budget']}: {own['first']} - {own['second']}"
        interval = "" if own["low"] is None else f" ({own['low']:+.2f} to {own['high']:+.2f})"
        number = f"{own['count']:,} {own['by'][:-1] if own['count'] == 1 else own['by']}"
        cells.setdefault((_title(plan, own["measure"]), number), {})[column] = f"{own['mean']:+.2f}{interval}"
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    return ["", "over", *columns], [[*row, *(own.get(column, "") for column in columns)] for row, own in cells.items()]


def draw_curves(results: dict[str, Any], path: Path) -> None:
    """Draw the loss on held-out text of the first seed of every run against tokens, operations and seconds."""
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.5), sharey=True)
    # In the colors of the other figure.
    names = list(dict.fromkeys(run["row"] for run in results["runs"] if run["row"] != RANDOM))
    shown = set()
    for run in results["runs"]:
        if run["seed"] != 1 or not run["curve"] or run["updates"] == 1:
            continue
        tokens, losses = zip(*run["curve"])
        for axis, total in zip(axes, ("tokens", "flop", "seconds")):
            scale = max(run[total], 1) / run["tokens"]
            label = None if run["row"] in shown else run["row"]
            axis.plot([scale * each for each in tokens], losses, color=f"C{names.index(run['row'])}", label=label)
        shown.add(run["row"])
    for axis, label in zip(axes, ("tokens", "floating-point operations", "seconds in training")):
        axis.set(xlabel=label, xscale="log")
    axes[0].set_ylabel("bits a predicted token")
    axes[0].legend(fontsize=8)
    _save(figure, path)


def draw_compute(plan: Plan, results: dict[str, Any], path: Path) -> None:
    """Draw the measures that all budgets have against the operations of pretraining, a line for each method."""
    pyplot = import_pyplot()
    table = results["table"]
    common = [set(rows[name]) for rows in table.values() for name in plan.methods if name in rows]
    first = next(iter(table.values()), {})
    cells = next((own for name, own in first.items() if name in plan.methods), {})
    measures = [measure for measure in cells if all(measure in each for each in common)]
    columns = max(1, min(_COLUMNS, len(measures)))
    lines = max(1, math.ceil(len(measures) / columns))
    figure, axes = pyplot.subplots(lines, columns, figsize=(4 * columns, 3.5 * lines), squeeze=False)
    for axis in axes.flat[len(measures) :]:
        axis.axis("off")
    for axis, measure in zip(axes.flat, measures):
        _draw_measure(axis, plan, table, measure)
    axes.flat[max(0, len(measures) - 1)].legend(fontsize=8)
    _save(figure, path)


def _draw_measure(axis: Any, plan: Plan, table: dict[str, Any], measure: str) -> None:
    for number, name in enumerate(plan.methods):
        points = [(float(budget), rows[name][measure]) for budget, rows in table.items() if name in rows]
        ends = [
            [own["mean"] - (own["low"] or own["mean"]) for _, own in points],
            [(own["high"] or own["mean"]) - own["mean"] for _, own in points],
        ]
        # Slightly apart, so that intervals do not hide one another.
        places = [compute * 1.06 ** (number - 1) for compute, _ in points]
        means = [own["mean"] for _, own in points]
        axis.errorbar(places, means, ends, label=name, color=f"C{number}", capsize=3, marker="o")
    random = best_random(table, measure)
    if random is not None and measure not in _LOWER:
        axis.axhline(random, color="gray", linestyle=":", label="random weights")
    axis.set(xscale="log", xlabel="floating-point operations", title=_title(plan, measure))
    budgets = [float(budget) for budget in table]
    axis.set_xlim(min(budgets) / 1.5, max(budgets) * 1.5)
    axis.set_xticks(budgets, list(table))
    axis.minorticks_off()


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    import_pyplot().close(figure)
