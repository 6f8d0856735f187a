"""What the finished programs of a miniature say: one dictionary, from their logs and JSON files."""

import os
import platform
from pathlib import Path
from statistics import median

import torch
from commands import MODELS, RANDOM
from glue import TASKS

from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.log import log_records

# Figure 3 is drawn for these, where small models differ most from random weights, and for so many seeds.
FIGURE_3_TASKS = ("SST-2", "STS-B")
FIGURE_3_SEEDS = 2
# The task whose fine-tuned models are analyzed: the largest one here, as MNLI is the paper's.
FIGURE_5_TASK = "SST-2"


def training_seconds(log: Path) -> dict[int, float]:
    """Seconds that fairseq spent in training steps until each logged update; a resumed run repeats some."""
    intervals = {int(record["num_updates"]): record["train_wall"] for _, record in log_records(log, ["train_inner"])}
    total, seconds = 0.0, {}
    for update in sorted(intervals):
        total += intervals[update]
        seconds[update] = total
    return seconds


def scores(runs: Path, model: str, stage: str, task: str) -> list[float]:
    """The scores of all seeds of a fine-tuning in percent, by seed."""
    files = sorted((runs / model / stage / task).glob("seed_*.json"), key=lambda path: int(path.stem[5:]))
    return [result["score"] for path in files if (result := read_json(path)) is not None and "score" in result]


def table(runs: Path) -> dict[str, dict[str, list[float]]]:
    """Scores of the last checkpoints: model, task, seed."""
    return {model: {task: scores(runs, model, "final", task) for task in TASKS} for model in (*MODELS, RANDOM)}


def average(row: dict[str, list[float]]) -> float:
    """Of the medians over seeds."""
    return sum(median(values) for values in row.values()) / len(row)


def figure_3(runs: Path, stages: int, updates: int) -> dict[str, list[dict[str, float]]]:
    """Quality against the time of pretraining.

    Args:
        runs: folder of logs and results.
        stages: of pretraining.
        updates: of the last stage.

    Returns:
        for each model its checkpoints by rising time: ``minutes``, ``updates`` of the last stage, and ``score``, the
        mean over the tasks of the median over the seeds.
    """
    points = {}
    for model in MODELS:
        logs = [runs / model / f"stage_{number + 1}.log" for number in range(stages)]
        before = sum(max(training_seconds(log).values(), default=0.0) for log in logs[:-1])
        seconds = {0: 0.0, **training_seconds(logs[-1])}
        points[model] = []
        names = [path.name for path in (runs / model).iterdir() if path.is_dir()]
        for stage in sorted(names, key=lambda name: updates if name == "final" else int(name)):
            done = updates if stage == "final" else int(stage)
            values = [median(scores(runs, model, stage, task)[:FIGURE_3_SEEDS]) for task in FIGURE_3_TASKS]
            spent = before + max(value for update, value in seconds.items() if update <= done)
            points[model].append({"minutes": spent / 60, "updates": done, "score": sum(values) / len(values)})
    return points


def random_score(runs: Path) -> float:
    """What Figure 3's tasks give from random weights."""
    values = [median(scores(runs, RANDOM, "final", task)[:FIGURE_3_SEEDS]) for task in FIGURE_3_TASKS]
    return sum(values) / len(values)


def ranks(analysis: Path) -> dict[str, dict[str, list[int]]]:
    """rank_0.9 by model, "condition, tokens" and layer, from the results of `maelm analyze`."""
    found: dict[str, dict[str, list[int]]] = {}
    for result in read_json(analysis / "results.json") or []:
        curves = found.setdefault(result["name"], {})
        for row in sorted(result["ranks"], key=lambda row: row["layer"]):
            curves.setdefault(f"{row['condition']}, {row['token_set']}", []).append(row["effective_rank"])
    return found


def machine() -> dict[str, str]:
    """What the programs ran on."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    return {"processor": f"{name}, {os.cpu_count()} cores", "GPU": gpu, **versions}
