"""Table 7 with the paper's numbers: mean and population standard deviation over the splits of few-shot learning."""

import statistics
from pathlib import Path
from typing import Any

import yaml
from study import last_json

from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.studies.engine import is_finished, read_json
from fairseq_maelm.studies.folder import SETTINGS
from fairseq_maelm.studies.tables import markdown_table

PLAN = yaml.safe_load((Path(__file__).parent / "few_shot.yaml").read_text(encoding="utf-8"))
# The one checkpoint of a finished run that is kept, as long as no other run of its split is better.
BEST = "checkpoint_best.pt"
_TASKS = PLAN["texts"]["printed"].split()
# way -> model -> task -> text.
TABLE_7 = {
    way: {
        f"{model} (paper)": dict(zip(_TASKS, row[model].split(" | "), strict=True)) for model in ("RoBERTa", "MAE-LM")
    }
    for way, row in PLAN["rows"].items()
}


def max_length(places: Any) -> int:
    """Return the most tokens of a prompt that the checkpoint has positions for."""
    words = places["model"]
    return min(BUILT_IN[places["task"]].max_length, int(words[words.index("--max-positions") + 1]))


PLACES = {
    "max-length": max_length,
    "metric": lambda places: BUILT_IN[places["task"]].metrics[0],
    "regression": lambda places: "--regression" if BUILT_IN[places["task"]].bounds else "",
    "best": lambda places: best_of(Path(places.text("{split}"))),
}


def scores(places: Any, log: Path) -> dict[str, Any]:
    """Return the metrics that `maelm predict` wrote."""
    return last_json(log)


def best_metric(places: Any, log: Path) -> dict[str, Any]:
    """Return the best metric on the development set, in percent; of the checkpoints only its own stays."""
    for path in log.parent.glob("checkpoint_*.pt"):
        if path.name != BEST:
            path.unlink()
    return {"dev": float(read_checkpoint(log.parent / BEST).history["val_loss"])}


def finished_runs(split: Path) -> list[Path]:
    """Return the folders of a split's finished runs, in the order of batch sizes and learning rates."""
    runs = [path.parent for path in split.glob("*/train.json") if is_finished(path)]
    return sorted(runs, key=lambda run: [float(part) for part in run.name.split("-", 1)])


def best_of(split: Path) -> Path:
    """Return the finished run that is best on the development set, the first of equals; one named BEST if none is."""
    runs = finished_runs(split)
    return max(runs, key=lambda run: (read_json(run / "train.json") or {})["dev"]) if runs else split / "BEST"


def keep_the_best(places: Any) -> None:
    """Remove the checkpoints of a split's other runs."""
    split = Path(places.text("{split}"))
    for run in finished_runs(split):
        if run != best_of(split):
            (run / BEST).unlink(missing_ok=True)


def cell(folder: Path, way: str, task: str) -> str:
    """Return a cell of the table: mean and deviation of each test table, a dash where a score is missing."""
    places = [folder / way / task]
    if way != "zero-shot":
        places = [best_of(split) for split in sorted(places[0].glob("[0-9]*"))]
    cells = []
    for test in (PLAN["tasks"][task] or PLAN)["tests"].split():
        found = [read_json(place / f"{test}.json") or {} for place in places]
        values = [result[BUILT_IN[task].metrics[0]] for result in found if "failed" not in result and result]
        deviation = f" ({statistics.pstdev(values):.1f})" if len(values) > 1 else ""
        complete = values and len(values) == len(places)
        cells.append(f"{statistics.fmean(values):.1f}{deviation}" if complete else "–")
    return " / ".join(cells)


def write(folder: Path) -> str:
    """Write table.md from what is finished, and return it."""
    settings = read_json(folder / SETTINGS) or {}
    tasks = list(settings["tasks"])
    rows = [
        [way, model, *(row[task] for task in tasks)]
        for way in PLAN["rows"]
        if way in settings["rows"]
        for model, row in {**TABLE_7[way], "this checkpoint": {task: cell(folder, way, task) for task in tasks}}.items()
    ]
    names = [f"{task} ({BUILT_IN[task].metrics[0]})" for task in tasks]
    table = markdown_table(["", "", *names], rows) + "\n"
    (folder / "table.md").write_text(table, encoding="utf-8")
    return table
