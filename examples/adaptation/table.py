"""The scores of a domain's tasks before and after adaptation: every run's, and the table of medians."""

import csv
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from sklearn.metrics import accuracy_score, f1_score
from study import last_json

from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.sweep.folder import FINISHED, outcomes_of, read_settings
from fairseq_maelm.sweep.jobs import is_finished
from fairseq_maelm.sweep.tables import markdown_table, with_interval

# In the order of the table's columns; the last one is compared with the others.
ROWS = ("before", "control", "dropped", "half", "after")
# The name of a metric in tables -> in what was measured.
METRICS = {"macro F1": "macro F1", "entity F1": "f1"}


def updates_of(places: Any) -> int:
    """Return the updates of the adapted checkpoint; what as many of general text give is what more training gives."""
    path = places["output"] / "adapted" / "checkpoint_best.pt"
    if not path.exists():
        return int(places["updates"])  # a dry run, or a folder that was tidied
    return int(read_checkpoint(path).state["optimizer_history"][-1]["num_updates"])


PLACES = {"warm-up": lambda places: int(places["updates"]) // 10, "adapted-updates": updates_of}


def adapted(places: Any, log: Path) -> dict[str, Any]:
    """Return the updates of the adapted checkpoint.

    Raises:
        ValueError: there is none.
    """
    if not (places["output"] / "adapted" / "checkpoint_best.pt").exists():
        raise ValueError("the general loss was above its bound before anything could be saved")
    return {"updates": updates_of(places)}


def score(places: Any, log: Path) -> dict[str, Any]:
    """Return the metrics of a test: `maelm predict` ends with those of labeled words; the others are computed here."""
    if places["kind"] == "conll":
        return last_json(log)
    return score_of_table(places["folder"] / "test.jsonl", Path(places.text("{scores}.tsv")))


def score_of_table(table: Path, predicted: Path) -> dict[str, float]:
    """Score the labels that `maelm predict` wrote for a .jsonl file: macro F1 and accuracy in percent."""
    with open(table, encoding="utf-8") as file:
        gold = [" ".join(str(json.loads(line)["label"]).split()) for line in file if line.strip()]
    labels = [line.split("\t")[0] for line in predicted.read_text(encoding="utf-8").splitlines()[1:]]
    return {
        "macro F1": 100 * float(f1_score(gold, labels, average="macro", zero_division=0)),
        "accuracy": 100 * float(accuracy_score(gold, labels)),
    }


def tidy(places: Any) -> None:
    """Remove the checkpoints of a fine-tuning that has a score."""
    if is_finished(Path(places.text("{scores}.json"))):
        shutil.rmtree(places.text("{run}"), ignore_errors=True)


def write(folder: Path) -> str:
    """Write the scores that are there into results.csv and their medians into table.md; return the table."""
    settings = read_settings(folder)
    metrics = {task: fields["metric"] for task, fields in settings["tasks"].items()}
    models = [model for model in ROWS if model in settings["rows"]]
    tests = [each for each in outcomes_of(folder, "test") if each.state == FINISHED]
    scores = [
        (
            task := each.axes["task"],
            metrics[task],
            each.axes["row"],
            each.axes["seed"],
            each.result[METRICS[metrics[task]]],
        )
        for each in tests
    ]
    with open(folder / "results.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["task", "metric", "model", "seed", "score"], *scores])
    lines = []
    for task, metric in metrics.items():
        values = [[score for *own, _, score in scores if own == [task, metric, model]] for model in models]
        gains = [_gain(values[-1], others) for others in values[:-1]]
        lines.append([task, metric, *map(_spread, values), *gains])
    head = ["task", "metric", *models, *(f"{models[-1]} - {model}" for model in models[:-1])]
    table = markdown_table(head, lines) + "\n"
    (folder / "table.md").write_text(table, encoding="utf-8")
    return table


def _spread(scores: list[float]) -> str:
    return with_interval(".1f", statistics.median(scores), min(scores), max(scores)) if scores else "–"


def _gain(scores: list[float], others: list[float]) -> str:
    return f"{statistics.median(scores) - statistics.median(others):+.1f}" if scores and others else "–"
