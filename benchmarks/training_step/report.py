"""Results as a table for people, in Markdown."""

from collections.abc import Sequence
from typing import Any

from training_step.contenders import label
from training_step.metrics import Spread, evaluate
from training_step.settings import Settings

STAGES = (
    "data",
    "encoder forward",
    "decoder forward",
    "head and loss",
    "forward",
    "backward",
    "scale and clip",
    "optimizer",
    "other",
)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, all but the first to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(zip(cells, widths))
        )
        return f"| {' | '.join([first, *rest])} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def _spread(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


def _number(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def speed_table(rows: list[dict[str, Any]], references: list[str]) -> str:
    """Speed, memory and utilization of every contender that did not fail."""
    memory = {row["name"]: row["memory"] for row in rows}
    base = next((memory[name] for name in references if name in memory), None)
    header = ["", "raw tokens/s", "with data", *(f"times {label(name)}" for name in references)]
    header += ["time / bare products", "MFU (measured peak)", "MFU (datasheet)", "peak memory, GB"]
    header += [f"memory / {label(next(name for name in references if name in memory))}"] if base else []
    header += ["GFLOP/token"]
    lines = []
    for row in rows:
        line = [label(row["name"]), f"{row['tokens_per_second']:,.0f}"]
        line += [_number(row["tokens_per_second_with_data"], ",.0f")]
        line += [_spread(row["ratios"].get(name)) for name in references]
        line += [_number(row.get("over_bare"), ".2f"), _number(row.get("utilization"), ".1%")]
        line += [_number(row.get("datasheet_utilization"), ".1%"), f"{row['memory'] / 1e9:.2f}"]
        line += [f"{row['memory'] / base:.2f}"] if base else []
        lines.append([*line, f"{row['gigaflops']:.3f}"])
    return table(*_without_empty(header, lines))


def _without_empty(header: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    used = [at for at in range(len(header)) if any(line[at] for line in lines)]
    return [header[at] for at in used], [[line[at] for at in used] for line in lines]


def stage_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds of the stages of one step."""

    def milliseconds(profile: dict[str, float], stage: str) -> str:
        return f"{1e3 * profile[stage]:,.1f}" if stage in profile else ""

    stages = (*STAGES, "total")
    lines = [[label(row["name"]), *(milliseconds(row["profile"], stage) for stage in stages)] for row in rows]
    return table(*_without_empty(["ms a step", *stages], lines))


def describe_machine(run: dict[str, Any]) -> str:
    """Describe where, when and with which versions a run was measured."""
    machine = run["machine"]
    if not machine:
        return f"Measured {run['date']}."
    place = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    load = " and ".join(str(value) for value in run["load_before_and_after"])
    return f"Measured {run['date']} on {place}; {versions}. Load average before and after: {load}."


def run_report(run: dict[str, Any], clock: str) -> str:
    """Return the text of one run: its settings, its tables, and what failed."""
    settings = Settings.from_dict(run["settings"])
    rows = evaluate(run, clock)
    good = [row for row in rows if "error" not in row]
    rounds = max((row["rounds"] for row in good), default=0)
    workers = f"{settings.num_workers} processes" if settings.num_workers else "the step's own process"
    parts = [
        f"### {settings.describe()}",
        f"{describe_machine(run)} Medians of {rounds} rounds of {run['steps']['steps']} step(s), {settings.threads} "
        f"thread(s); ratios are medians of the rounds' own ratios (least-greatest); data are made by {workers}.",
    ]
    if clock == "processor":
        parts.append("Times are processor time of the contender's process: others used the machine as well.")
    if good:
        parts.append(speed_table(good, run["references"]))
    if any(row["profile"] for row in good):
        parts += ["By stages, data included:", stage_table(good)]
    parts += [f"{label(row['name'])} failed: {row['error']}" for row in rows if "error" in row]
    return "\n\n".join(parts)


def report(runs: list[dict[str, Any]], clock: str) -> str:
    """Return all runs as one Markdown text."""
    return "\n\n".join(run_report(run, clock) for run in runs) + "\n"
