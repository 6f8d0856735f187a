"""The page: figures, tables and what was run, in one file that needs no other."""

import base64
import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plan import RANDOM, Plan
from summary import LOSS, PRIMARY, best_random

from fairseq_maelm.files.atomic import write_bytes, write_json
from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.sweep.tables import markdown_table, with_interval

_STYLE = (
    "body{font-family:sans-serif;max-width:64em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse;margin:1em 0;font-size:.85em}"
    "td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}"
    "th{background:#eee}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)

Section = tuple[str, str, list[str], list[list[str]]]


def write(plan: Plan, results: dict[str, Any], output: Path) -> None:
    """Write results.json, results.md, page.html and the figures differences.png and curves.png."""
    write_json(output / "results.json", results)
    parts = sections(plan, results)
    write_bytes(output / "results.md", markdown(results["title"], parts).encode())
    draw_curves(results, output / "curves.png")
    draw_differences(plan, results, output / "differences.png")
    body = [f"<h1>{html.escape(results['title'])}</h1>"]
    for name, caption in (
        (
            "differences.png",
            "Differences of equal seeds at equal FLOPs, with 95 % intervals (paired t) from three seeds on.",
        ),
        ("curves.png", "Loss on held-out text with 15 % of the tokens masked, against tokens, FLOPs and seconds."),
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
        found.append((f"{budget} FLOPs", words, header, lines))
    words = (
        "Mean differences with 95 % intervals. Most are over pairs of runs with equal pretraining seeds (paired t). "
        "Those over the examples of the primary tasks say nothing about other seeds."
    )
    found.append(("Differences at equal FLOPs", words, *_differences(plan, results)))
    found.append(_equal(results))
    header = ["", "updates", "tokens", "FLOPs", "seconds of training", "bits per masked token"]
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
    found.append(("Pretraining runs", "FLOPs include encoder, decoder, head and optimizer.", header, rows))
    trials = [[trial["method"], f"{trial['loss']:.3f}"] for trial in results["trials"]]
    found.append(("Selection", "By the lowest loss on held-out text.", ["", "bits per masked token"], trials))
    return found


def _strength(plan: Plan, results: dict[str, Any]) -> list[Section]:
    """Compare the first method with encoders that others have measured, if there is a common measure."""
    first, table, known = next(iter(plan.methods)), results["table"], plan.content["known"]
    own = {f"{first}, {budget} FLOPs": rows[first] for budget, rows in table.items() if first in rows}
    measures = dict.fromkeys(measure for encoder in known["encoders"].values() for measure in encoder)
    measures = [measure for measure in measures if any(measure in cells for cells in own.values())]
    rows = [[name, *(_cell(cells, measure) for measure in measures)] for name, cells in own.items()]
    rows += [[RANDOM, *(_number(best_random(table, measure)) for measure in measures)]]
    for name, encoder in known["encoders"].items():
        if any(measure in encoder for measure in measures):
            rows.append([name, *(_number(encoder.get(measure)) for measure in measures)])
    header = ["", *(_title(plan, measure) for measure in measures)]
    return [(f"Strength of our {first}", known["words"], header, rows)] if measures else []


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _equal(results: dict[str, Any]) -> Section:
    words = (
        "Up to the limit that the slowest method reaches, by interpolation between checkpoints. Only for that method "
        "has the learning-rate schedule ended. Update times were measured alternately on an idle machine."
    )
    header = ["budget in FLOPs", "equal", "up to", "method", "bits per masked token", "primary measure"]
    rows = []
    for own in results["equal"]:
        cells = [_cell(own["measures"], measure) for measure in (LOSS, PRIMARY)]
        rows.append([own["budget"], own["axis"], f"{own['limit']:,.4g}", own["method"], *cells])
    return "Equal updates, FLOPs and time", words, header, rows


def _title(plan: Plan, measure: str) -> str:
    if measure == LOSS:
        return "loss in bits per masked token, 15 % masked"
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
    """Draw the loss on held-out text of the first seed of every run against tokens, FLOPs and seconds."""
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
    for axis, label in zip(axes, ("tokens", "FLOPs", "seconds in training")):
        axis.set(xlabel=label, xscale="log")
    axes[0].set_ylabel("loss in bits per masked token")
    axes[0].legend(fontsize=8)
    _save(figure, path)


def draw_differences(plan: Plan, results: dict[str, Any], path: Path) -> None:
    """Draw how far each method is from the first one against FLOPs: a panel for each measure."""
    pyplot = import_pyplot()
    found, first = results["from_first"], next(iter(plan.methods))
    measures, budgets = list(dict.fromkeys(own["measure"] for own in found)), list(results["table"])
    columns = max(1, min(3, len(measures)))
    rows = max(1, math.ceil(len(measures) / columns))
    figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 2.6 * rows + 0.5), squeeze=False)
    for axis in axes.flat[len(measures) :]:
        axis.set_axis_off()
    for axis, measure in zip(axes.flat, measures):
        for color, name in enumerate(plan.methods):
            own = [each for each in found if (each["measure"], each["first"]) == (measure, name)]
            # Methods are drawn apart, so that no interval hides another.
            places = [budgets.index(each["budget"]) + 0.09 * (color - len(plan.methods) / 2) for each in own]
            # An interval over two seeds is so wide that nothing else could be seen.
            halves = [each["high"] - each["mean"] if each["count"] > 2 else math.nan for each in own]
            style = {"color": f"C{color}", "marker": "o", "markersize": 4, "linewidth": 1, "capsize": 2}
            if own:
                axis.errorbar(places, [each["mean"] for each in own], yerr=halves, label=name, **style)
        axis.axhline(0, color="gray", linewidth=0.8)
        axis.set_title(f"{LOSS} (less is better)" if measure == LOSS else _title(plan, measure), fontsize=9)
        axis.set_xticks(range(len(budgets)), budgets)
        axis.set_xlim(-0.6, len(budgets) - 0.4)
    handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
    if handles:
        figure.legend(handles.values(), handles, fontsize=9, ncols=len(handles), loc="upper center")
    figure.supxlabel("FLOPs", fontsize=10)
    figure.supylabel(f"difference from {first}: loss in bits, scores in points, rank", fontsize=10)
    _save(figure, path, rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))


def _save(figure: Any, path: Path, **layout: Any) -> None:
    figure.tight_layout(**layout)
    figure.savefig(path, dpi=110)
    import_pyplot().close(figure)
