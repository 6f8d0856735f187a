"""Run probes: a result file for each model and task, and a report on all of them."""

import hashlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from fairseq_maelm.analysis.analysis_settings import ProbeSettings
from fairseq_maelm.analysis.checkpoints import CheckpointEncoder, chosen_layers
from fairseq_maelm.analysis.folder import claimed, fingerprint_of
from fairseq_maelm.analysis.probes.inputs import read_tasks
from fairseq_maelm.analysis.probes.states import FrozenEncoder
from fairseq_maelm.analysis.probes.tasks import Row, Task
from fairseq_maelm.files.atomic import read_json, sha256_of, write_bytes, write_json

logger = logging.getLogger(__name__)

_RESULTS_FOLDER, _MODEL_FILE = "results", "model.json"
_TABLE_FILE = "probes.md"


class Probed(NamedTuple):
    """A model to probe."""

    name: str
    path: Path  # a checkpoint
    random_seed: int | None  # seed of random weights; None for the model's own weights


def probe(models: list[Probed], settings: ProbeSettings, output: Path, device: str) -> Path:
    """Measure models on the tasks that ``output`` has no results for, and write the report on all models.

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
    origins = {task.name: _checksum(f"{file.name} {sha256_of(file)}" for file in task.files) for task in tasks}
    prints = {model.name: _checksum([fingerprint_of(model.path), str(model.random_seed)]) for model in models}
    left = {model.name: _unfinished(output, model.name, prints[model.name], tasks, origins) for model in models}
    for model in models:
        if left[model.name]:
            chosen_layers(model.name, _open(model, settings), settings.layers)
    with claimed(output, settings.recorded(), "`maelm probe`"):
        for model in models:
            if left[model.name]:
                _measure(model, prints[model.name], left[model.name], origins, settings, output, device)
        folders = [output / _RESULTS_FOLDER / model.name for model in models]
        # Models of earlier commands come last, as far as they have been measured on the same tasks.
        folders += [path for path in sorted((output / _RESULTS_FOLDER).iterdir()) if _has_all(path, tasks, origins)]
        results = [_read_results(folder, tasks) for folder in dict.fromkeys(folders)]
        write_json(output / "results.json", {"settings": settings.recorded(), "models": results})
        write_bytes(output / _TABLE_FILE, table(results).encode("utf-8"))
    return output / _TABLE_FILE


def _checksum(parts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode("utf-8")).hexdigest()


def _open(model: Probed, settings: ProbeSettings) -> CheckpointEncoder:
    return CheckpointEncoder(model.path, settings.vocabulary, model.random_seed)


def _unfinished(output: Path, name: str, model: str, tasks: list[Task], origins: dict[str, str]) -> list[Task]:
    """Return the tasks that a model has no results for; raise a ValueError for results of another model or input."""
    left = []
    for task in tasks:
        file = output / _RESULTS_FOLDER / name / f"{task.name}.json"
        if not file.exists():
            left.append(task)
            continue
        found = read_json(file)
        other = "model" if found["model"] != model else "input" if found["input"] != origins[task.name] else ""
        if other:
            raise ValueError(
                f"{file} has results of a different {other} of the same name: choose another name or folder"
            )
    return left


def _has_all(folder: Path, tasks: list[Task], origins: dict[str, str]) -> bool:
    files = {task.name: folder / f"{task.name}.json" for task in tasks}
    return all(file.is_file() and read_json(file)["input"] == origins[name] for name, file in files.items())


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
    return row["set"], row["measure"], row["pooling"]


def _shown(row: Row | None) -> str:
    return "" if row is None else f"{100 * row['value']:.1f}"


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each set, measure and pooling, and three columns per model."""
    cells: dict[tuple[Any, ...], list[str]] = {_kind(row): [] for result in results for row in result["rows"]}
    for result in results:
        for kind, shown in cells.items():
            rows = [row for row in result["rows"] if _kind(row) == kind]
            embeddings = next((row for row in rows if row["layer"] == 0), None)
            last = max(rows, key=lambda row: row["layer"] or 0, default=None)
            highest = max(rows, key=lambda row: row["value"], default=None)
            best = f"{_shown(highest)} ({highest['layer']})" if highest and highest["layer"] is not None else ""
            shown += [_shown(embeddings), _shown(last), best]
    header = ["set", "measure", "pooling"]
    for result in results:
        header += [f"{result['name']}: embeddings", "last layer", "highest (layer)"]
    lines = [[name, measure, pooling or "", *shown] for (name, measure, pooling), shown in cells.items()]
    note = "Accuracies are in percent. The highest layer is chosen on the reported rows.\n\n"
    return note + str(tabulate(lines, header, tablefmt="github", disable_numparse=True)) + "\n"
