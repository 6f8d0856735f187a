"""Cost against length, width, batch and masking rate, from the runs of a sweep."""

from pathlib import Path
from typing import Any

from training_step.contenders import label
from training_step.metrics import evaluate
from training_step.settings import SWEEPS

FIELDS = {"length": "length", "width": "width", "batch": "sequences", "masking": "masking"}
AXES = {
    "length": "tokens of a sequence (a step's tokens stay the same)",
    "width": "width of the model",
    "batch": "sequences of a step",
    "masking": "fraction of tokens predicted",
}

Curves = dict[str, list[tuple[float, float]]]


def curves(runs: list[dict[str, Any]], dimension: str, clock: str) -> Curves:
    """(value of the dimension, microseconds for a raw token) of every contender, from the runs of one sweep."""
    found: Curves = {}
    for run in runs:
        if run.get("sweep") != dimension:
            continue
        for row in evaluate(run, clock):
            if "error" not in row:
                point = (float(run["settings"][FIELDS[dimension]]), 1e6 / row["tokens_per_second"])
                found.setdefault(row["name"], []).append(point)
    return {name: sorted(points) for name, points in found.items() if len(points) > 1}


def draw(runs: list[dict[str, Any]], output: Path, clock: str) -> list[Path]:
    """Draw every sweep that the runs hold; returns the files. Without matplotlib there are none."""
    swept = {dimension: curves(runs, dimension, clock) for dimension in SWEEPS}
    swept = {dimension: lines for dimension, lines in swept.items() if lines}
    if not swept:
        return []
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    files = []
    for dimension, lines in swept.items():
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for name, points in lines.items():
            axes.plot(*zip(*points), marker="o", label=label(name))
        axes.set_xlabel(AXES[dimension])
        axes.set_ylabel(f"microseconds for a raw token{' (processor time)' if clock == 'processor' else ''}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        files.append(output.with_name(f"{output.stem}_{dimension}.png"))
        figure.savefig(files[-1], dpi=150)
        pyplot.close(figure)
    return files
