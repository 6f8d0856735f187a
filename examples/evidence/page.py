"""The page: figures, tables and what was run, in one file that needs no other."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plan import RANDOM, Plan
from summary import LOSS, PRIMARY, best_random

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.studies.tables import markdown_table, with_interval

_STYLE = (
    "body{font-family:sans-serif;max-width:64em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse;margin:1em 0;font-size:.85em}"
    "td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}"
    "th{background:#eee}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)
# One for each budget.
_MARKERS = "osD^v<>"

Section = tuple[str, str, list[str], list[list[str]]]


def write(plan: Plan, results: dict[str, Any], output: Path) -> None:
    """Write results.md, page.html and the figures differences.png and curves.png."""
    parts = sections(plan, results)
    write_bytes(output / "results.md", markdown(results["title"], parts).encode())
    draw_curves(results, output / "curves.png")
    draw_differences(plan, results, output / "differences.png")
    body = [f"<h1>{html.escape(results['title'])}</h1>"]
    for name, caption in (
        ("differences.png", "Differences of equal seeds at equal operations, with 95 % intervals (paired t)."),
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
        names = " and ".join(plan.content["primary"])
        return f"mean of {names}" if len(plan.content["primary"]) > 1 else names
    own = plan.tasks.get(measure, {}).get("metric", "")
    return f"{measure} ({own})" if own else measure


def _cell(cells: dict[str, dict[str, Any]], measure: str) -> str:
    value, digits = cells.get(measure), 3 if measure == LOSS else 1
    if value is None:
        return ""
    return with_interval(f".{digits}f", value["mean"], value["low"], value["high"])


def _differences(plan: Plan, results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for own in results["differences"]:
        column = f"{own['budget']}: {own['first']} - {own['second']}"
        number = f"{own['count']:,} {own['by'][:-1] if own['count'] == 1 else own['by']}"
        cells.setdefault((_title(plan, own["measure"]), number), {})[column] = with_interval(
            "+.2f", own["mean"], own["low"], own["high"]
        )
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


def draw_differences(plan: Plan, results: dict[str, Any], path: Path) -> None:
    """Draw how far each method is from the first one: a line for each measure, a marker for each budget."""
    pyplot = import_pyplot()
    found, first = results["from_first"], next(iter(plan.methods))
    measures = list(dict.fromkeys(own["measure"] for own in found if own["measure"] != LOSS))
    panels = [([LOSS], f"bits more than {first}"), (measures, f"points more than {first}; dimensions for ranks")]
    names, budgets = list(plan.methods), list(results["table"])
    height = [1.2, 0.8 + 0.5 * max(1, len(measures))]
    figure, axes = pyplot.subplots(2, 1, figsize=(9, sum(height) + 0.8), height_ratios=height)
    for axis, (rows, words) in zip(axes, panels):
        for own in (own for own in found if own["measure"] in rows):
            method, budget = names.index(own["first"]), budgets.index(own["budget"])
            # Methods and budgets of a measure are drawn apart, so that no interval hides another.
            step = 0.7 / (max(1, len(names) - 1) * len(budgets))
            place = rows.index(own["measure"]) - 0.3 + step * ((method - 1) * len(budgets) + budget)
            ends = None if own["low"] is None else [[own["mean"] - own["low"]], [own["high"] - own["mean"]]]
            label = f"{own['first']}, {own['budget']} FLOP"
            style = {"color": f"C{method}", "marker": _MARKERS[budget % len(_MARKERS)], "capsize": 3}
            axis.errorbar([own["mean"]], [place], xerr=ends, linestyle="", label=label, **style)
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.set(xlabel=words, ylim=(len(rows) - 0.4, -0.6))
        axis.set_yticks(range(len(rows)), [_title(plan, measure) for measure in rows])
    axes[0].set_yticks([0], ["bits, 15 % masked\n(less is better)"])
    handles = dict(zip(*reversed(axes[0].get_legend_handles_labels())))
    if handles:
        columns = min(4, len(handles))
        axes[0].legend(
            handles.values(), handles, fontsize=8, ncols=columns, loc="lower center", bbox_to_anchor=(0.4, 1)
        )
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    import_pyplot().close(figure)
