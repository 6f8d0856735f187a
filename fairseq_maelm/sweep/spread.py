"""A figure of the spread: every run of the grid, and the seeds of the best setting, beside the paper's scores.

All can be told apart without color: by marker, filling and line.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.files import write_bytes
from fairseq_maelm.libraries import import_pyplot
from fairseq_maelm.sweep.results import FINISHED, Sweep, published_rows

__all__ = ["draw_spread"]

_COLUMNS = 4
_LINES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4)))
_GRID_COLOR, _BEST_COLOR, _PAPER_COLOR = "#8A8A8A", "#000000", "#0072B2"


def draw_spread(sweep: Sweep, folder: Path, groups: Optional[Sequence[str]] = None) -> None:
    """Draw ``folder``/spread.png and .svg, a panel for each task.

    Args:
        sweep: collected.
        folder: for the files.
        groups: of the paper's rows; all by default.

    Raises:
        ValueError: matplotlib is missing, or no run has finished.
    """
    tasks = [task for task in sweep.tasks if any(sweep.cells[task, model].finished for model in sweep.models)]
    if not tasks:
        raise ValueError("no figure: no run has finished")
    pyplot = import_pyplot()
    lines, columns = math.ceil(len(tasks) / _COLUMNS), min(len(tasks), _COLUMNS)
    with pyplot.rc_context({"svg.hashsalt": "spread", "font.size": 9}):
        width = max(2.8, 0.9 * len(sweep.models) + 1.2)
        figure, axes = pyplot.subplots(lines, columns, figsize=(width * columns + 1.6, 3.4 * lines), squeeze=False)
        for axis, task in zip(axes.flat, tasks):
            _panel(axis, sweep, task, published_rows(sweep, groups))
        for axis in axes.flat[len(tasks) :]:
            axis.set_axis_off()
        figure.tight_layout()
        handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.0, 0.97), fontsize=8)
        for ending, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
            stream = io.BytesIO()
            figure.savefig(stream, format=ending, bbox_inches="tight", **options)
            write_bytes(folder / f"spread.{ending}", stream.getvalue())
        pyplot.close(figure)


def _panel(axis: Any, sweep: Sweep, task: str, rows: dict[tuple[str, str], dict[str, list[float]]]) -> None:
    for place, model in enumerate(sweep.models):
        cell = sweep.cells[task, model]
        of_model = [each for each in sweep.outcomes if (each.run.task, each.run.model) == (task, model)]
        others = [each.scores[0] for each in of_model if each.state == FINISHED and each.run.setting != cell.setting]
        _points(axis, place - 0.18, others, {"marker": "o", "s": 14, "linewidths": 0.6, "color": _GRID_COLOR},
                "other settings, each seed", hollow=True)  # fmt: skip
        best = [scores[0] for scores in cell.finished]
        _points(axis, place + 0.18, best, {"marker": "D", "s": 20, "color": _BEST_COLOR}, "best setting, each seed")
        if cell.scores and math.isfinite(cell.scores[0]):
            ends = (place + 0.02, place + 0.34)
            axis.hlines(cell.scores[0], *ends, color=_BEST_COLOR, linewidth=1.8, label="its median")
    # The order of all rows gives each the same line in every panel.
    for number, ((group, name), scores) in enumerate(rows.items()):
        score = (scores.get(task) or [math.nan])[0]
        if math.isfinite(score):
            style = _LINES[number % len(_LINES)]
            label = f"paper, {group}: {name}"
            axis.axhline(score, color=_PAPER_COLOR, linewidth=1.0, linestyle=style, label=label)
    axis.set_xticks(range(len(sweep.models)), sweep.models, rotation=20, ha="right")
    axis.set(title=task, ylabel=f"{sweep.about['tasks'][task]['metric']} (%)", xlim=(-0.6, len(sweep.models) - 0.4))
    axis.grid(axis="y", alpha=0.3)


def _points(
    axis: Any, center: float, values: Sequence[float], look: dict[str, Any], label: str, hollow: bool = False
) -> None:
    """Equal values side by side instead of one upon another; always in the same places."""
    if not values:
        return
    ordered = sorted(values)
    shifts = [0.035 * ((number % 5) - 2) for number in range(len(ordered))]
    filling = {"facecolors": "none", "edgecolors": look.pop("color")} if hollow else {}
    axis.scatter([center + shift for shift in shifts], ordered, **look, **filling, label=label, zorder=3)
