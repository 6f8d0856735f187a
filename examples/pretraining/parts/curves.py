"""Table and curves of a study of pretrainings: loss on held-out text against tokens, operations and seconds."""

import csv
import math
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import study
from tabulate import tabulate

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.sweep.folder import outcomes_of, read_settings
from fairseq_maelm.sweep.jobs import is_finished, read_json

# Shares of the tokens that have a column.
SHARES = (0.05, 0.1, 0.25, 0.5)

Curve = dict[int, float]


def runs_of(folder: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pretrainings that have begun, in the order of the rows: name -> row, objective, seed, options."""
    plan = {**settings["plan"], "rows": settings["rows"]}
    begun = [each for each in outcomes_of(folder, "pretraining") if each.marker.with_suffix(".log").exists()]
    return {
        each.marker.parent.name: {
            **each.axes,
            "options": study.row_options(plan, each.axes["row"], each.axes["objective"]),
            "first": plan["rows"][each.axes["row"]].get("first"),
        }
        for each in begun
    }


def curve(folder: Path, name: str, run: dict[str, Any], tokens: int) -> Curve:
    """Return the losses on held-out text in bits, by the tokens read until then."""
    parts = {name: 0} if run["first"] is None else {f"{name}.first": 0, name: round(run["first"]["share"] * tokens)}
    return {
        before + updates * study.tokens_of_update(run["options"]): loss
        for part, before in parts.items()
        for updates, loss in study.losses(folder / "runs" / part / "pretraining.log").items()
    }


def line_of(own: list[tuple[dict[str, Any], Curve, dict[str, Any]]], tokens: int, vocabulary: int) -> dict[str, Any]:
    """Return the line of a row and objective: means over its finished seeds."""
    run = own[0][0]
    ends = [result["loss"] for _, _, result in own]
    speeds = [result["updates_per_second"] for _, _, result in own if result.get("updates_per_second")]
    near = {
        f"{share * tokens / 1e6:g} M": mean(_at(points, share * tokens) for _, points, _ in own) for share in SHARES
    }
    return {
        "row": run["row"], "objective": run["objective"], "seeds": len(own), **near, "loss": mean(ends),
        "spread": max(ends) - min(ends), "MFLOP a token": study.training_flops(run["options"], vocabulary) / 1e6,
        "tokens/s": median(speeds) * study.tokens_of_update(run["options"]) if speeds else math.nan,
    }  # fmt: skip


def _at(points: Curve, tokens: float) -> float:
    return points[min(points, key=lambda at: abs(at - tokens))]


def write(folder: Path) -> str:
    """Write table.md, curves.csv and curves.png from the runs that are finished; return the table."""
    settings = read_settings(folder)
    tokens, vocabulary = int(settings["tokens"]), settings["vocabulary"]
    done: dict[tuple[str, str], list[tuple[dict[str, Any], Curve, dict[str, Any]]]] = {}
    points = []
    for name, run in runs_of(folder, settings).items():
        marker, own = folder / "runs" / name / "pretraining.json", curve(folder, name, run, tokens)
        flop = study.training_flops(run["options"], vocabulary)
        speed = (read_json(marker) or {}).get("updates_per_second")
        for at, loss in own.items():
            seconds = at / study.tokens_of_update(run["options"]) / speed if speed else math.nan
            points.append([run["row"], run["objective"], run["seed"], at, f"{at * flop:.4g}", f"{seconds:.4g}", loss])
        if is_finished(marker):
            done.setdefault((run["row"], run["objective"]), []).append((run, own, read_json(marker) or {}))
    lines = [line_of(own, tokens, vocabulary) for own in done.values()]
    table = (
        tabulate([line.values() for line in lines], list(lines[0]) if lines else (), "github", floatfmt=".3f") + "\n"
    )
    write_bytes(folder / "table.md", table.encode())
    with open(folder / "curves.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["row", "objective", "seed", "tokens", "flop", "seconds", "loss"], *points])
    draw(points, folder / "curves.png")
    return table


def draw(points: list[list[Any]], path: Path) -> None:
    """Draw the loss of the first seeds against tokens, operations and seconds."""
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), sharey=True)
    names = dict.fromkeys((row, objective) for row, objective, seed, *_ in points if seed == "1")
    for number, (row, objective) in enumerate(names):
        own = [[float(value) for value in point[3:]] for point in points if point[:3] == [row, objective, "1"]]
        *quantities, losses = zip(*own)
        style = {"color": f"C{number % 10}", "linestyle": "--" if objective == "mlm" else "-"}
        for axis, values in zip(axes, quantities):
            axis.plot(values, losses, label=f"{row}, {objective}", **style)
    for axis, label in zip(axes, ("tokens", "floating-point operations", "seconds, with other programs running")):
        axis.set(xlabel=label, xscale="log")
    axes[0].set_ylabel("bits a predicted token, held-out text, 15 % masked")
    if names:
        axes[2].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
