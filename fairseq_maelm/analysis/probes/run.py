"""Probes of models: one file of results for each model and task, and a report on all of them."""

import hashlib
import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from fairseq_maelm.analysis.checkpoints import CheckpointEncoder, chosen_layers
from fairseq_maelm.analysis.figures import look_of, whole_numbers
from fairseq_maelm.analysis.folder import claimed, fingerprint_of
from fairseq_maelm.analysis.probes.inputs import read_tasks
from fairseq_maelm.analysis.probes.states import FrozenEncoder
from fairseq_maelm.analysis.probes.tasks import Row, Task
from fairseq_maelm.analysis.settings import ProbeSettings
from fairseq_maelm.files.atomic import read_json, sha256_of, write_bytes, write_json
from fairseq_maelm.files.optional_imports import import_pyplot, save_figure

logger = logging.getLogger(__name__)

_RESULTS_FOLDER, _MODEL_FILE = "results", "model.json"
_TABLE_FILE = "probes.md"
# Measures that are not shown in hundredths, as shares and correlations are.
_AS_THEY_ARE = ("effective rank", "bits gained by the repetition")
_PANELS = 4  # in a row of the figure


class Probed(NamedTuple):
    """A model to probe."""

    name: str
    path: Path  # a checkpoint
    random_seed: int | None  # seed of random weights; None for the model's own weights


def probe(models: list[Probed], settings: ProbeSettings, output: Path, device: str) -> Path:
    """Measure the models and tasks for which ``output`` has no results yet, and write the report on all of them.

    Args:
        models: in the order of the report, with different names.
        settings: inputs and options for all models.
        output: folder for results: new, empty, or of probes with the same settings.
        device: device of the models.

    Returns:
        the path of the table.

    Raises:
        ValueError, OSError: an input, a model or the folder cannot be used; nothing has been measured then.
    """
    tasks = read_tasks(settings)
    origins = {task.name: _checksum(map(sha256_of, task.files)) for task in tasks}
    prints = {model.name: _checksum([fingerprint_of(model.path), str(model.random_seed)]) for model in models}
    left = {model.name: _unfinished(output, model.name, prints[model.name], tasks, origins) for model in models}
    for model in models:
        if left[model.name]:
            chosen_layers(model.name, _open(model, settings), settings.layers)
    with claimed(output, settings.recorded(), "`maelm probe`"):
        for model in models:
            if left[model.name]:
                _measure(model, prints[model.name], left[model.name], origins, settings, output, device)
        results = [_read_results(output / _RESULTS_FOLDER / model.name, tasks) for model in models]
        write_json(output / "results.json", {"settings": settings.recorded(), "models": results})
        write_bytes(output / _TABLE_FILE, table(results).encode("utf-8"))
        try:
            draw(results, output / "probes")
        except ValueError as error:
            logger.warning("the table has no figure: %s", error)
    return output / _TABLE_FILE


def _checksum(parts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode("ascii")).hexdigest()


def _open(model: Probed, settings: ProbeSettings) -> CheckpointEncoder:
    return CheckpointEncoder(model.path, settings.vocabulary, model.random_seed)


def _unfinished(output: Path, name: str, model: str, tasks: list[Task], origins: dict[str, str]) -> list[Task]:
    """Return the tasks without results of a model; raise a ValueError for results of another model or input."""
    left = []
    for task in tasks:
        file = output / _RESULTS_FOLDER / name / f"{task.name}.json"
        if not file.exists():
            left.append(task)
            continue
        found = read_json(file)
        other = "model" if found["model"] != model else "input" if found["input"] != origins[task.name] else ""
        if other:
            raise ValueError(f"{file} has results of another {other} of this name: choose another name or folder")
    return left


def _measure(
    model: Probed,
    model_print: str,
    tasks: list[Task],
    origins: dict[str, str],
    settings: ProbeSettings,
    output: Path,
    device: str,
) -> None:
    """Measure a model on tasks, and write the results of each task as soon as it is done."""
    encoder = _open(model, settings).to(device)
    layers = chosen_layers(model.name, encoder, settings.layers)
    running = settings.max_length, settings.batch_tokens, settings.precision, device
    frozen = FrozenEncoder(model.name, encoder, layers, *running)
    folder = output / _RESULTS_FOLDER / model.name
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"name": model.name, "path": str(model.path), "random_weights": model.random_seed is not None}
    facts |= {"kind": encoder.kind, "num_layers": encoder.num_layers, "width": encoder.width}
    write_json(folder / _MODEL_FILE, {**facts, "model_settings": encoder.settings})
    for number, task in enumerate(tasks, 1):
        begun = time.monotonic(), time.process_time()
        rows = task.measure(frozen)
        seconds, processor = time.monotonic() - begun[0], time.process_time() - begun[1]
        logger.info("%s: %s, %d of %d, %.0f s", model.name, task.name, number, len(tasks), seconds)
        made_from = {"model": model_print, "input": origins[task.name]}
        took = {"seconds": round(seconds, 2), "processor_seconds": round(processor, 2)}
        write_json(folder / f"{task.name}.json", {**made_from, **took, "rows": rows})


def _read_results(folder: Path, tasks: list[Task]) -> dict[str, Any]:
    found = {task.name: read_json(folder / f"{task.name}.json") for task in tasks}
    seconds = {name: each["seconds"] for name, each in found.items()}
    rows = [row for each in found.values() for row in each["rows"]]
    return {**read_json(folder / _MODEL_FILE), "seconds": seconds, "rows": rows}


def _kind(row: Row) -> tuple[Any, ...]:
    return row["set"], row["measure"], row["pooling"], row["whitened"]


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    as_it_is = row["measure"] in _AS_THEY_ARE
    return f"{row['value']:.3g}" if as_it_is else f"{100 * row['value']:.1f}"


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each set, measure, pooling and whitening, and three columns per model."""
    cells: dict[tuple[Any, ...], list[str]] = {_kind(row): [] for result in results for row in result["rows"]}
    for result in results:
        for kind, shown in cells.items():
            rows = [row for row in result["rows"] if _kind(row) == kind]
            embeddings = next((row for row in rows if row["layer"] == 0), None)
            last = max(rows, key=lambda row: row["layer"] or 0, default=None)
            highest = max(rows, key=lambda row: row["value"], default=None)
            best = f"{_shown(highest)} ({highest['layer']})" if highest and highest["layer"] is not None else ""
            shown += [_shown(embeddings), _shown(last), best]
    header = ["set", "measure", "pooling", "whitened"]
    for result in results:
        header += [f"{result['name']}: embeddings", "last layer", "highest (layer)"]
    lines = [
        [name, measure, pooling or "", {True: "yes", False: "no", None: ""}[whitened], *shown]
        for (name, measure, pooling, whitened), shown in cells.items()
    ]
    note = "Shares, correlations and cosines are in hundredths. The highest layer is chosen on the reported rows.\n\n"
    return note + str(tabulate(lines, header, tablefmt="github", disable_numparse=True)) + "\n"


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Plot mean-pooled results, a panel for each data set and measure; dashed lines are whitened.

    Raises:
        ValueError: matplotlib is missing.
    """
    rows = [row for result in results for row in result["rows"] if row["layer"] is not None]
    panels = list(dict.fromkeys(_kind(row)[:2] for row in rows))
    pyplot = import_pyplot()
    with pyplot.rc_context({"svg.hashsalt": "probes", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        lines = math.ceil(len(panels) / _PANELS) or 1
        figure, axes = pyplot.subplots(lines, _PANELS, figsize=(3.6 * _PANELS, 2.8 * lines), squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, (name, measure) in zip(axes.flat, panels):
            axis.set_title(f"{name}\n{measure}", fontsize=9)
            whole_numbers(axis.xaxis)
            for number, result in enumerate(results):
                for style, whitened in (("-", False), ("--", True)):
                    curve = _curve(result, name, measure, whitened)
                    if curve:
                        label = result["name"] + (", whitened" if whitened else "")
                        axis.plot(*zip(*curve), label=label, **look_of(number, style))
        handles = {text: line for axis in axes.flat for line, text in zip(*axis.get_legend_handles_labels())}
        figure.supxlabel("layer")
        figure.tight_layout()
        figure.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3.5)
        save_figure(figure, path)


def _curve(result: dict[str, Any], name: str, measure: str, whitened: bool) -> list[tuple[int, float]]:
    wanted = [(name, measure, pooling, whitened) for pooling in ("mean", None)]
    return [(row["layer"], row["value"]) for row in result["rows"] if _kind(row) in wanted and row["layer"] is not None]
