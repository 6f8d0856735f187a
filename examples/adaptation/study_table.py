"""Results of the study of adaptation: how rates are chosen, a record of every measurement, and the page's tables.

``python study_table.py study.csv`` prints the tables of records that were kept.
"""

import csv
import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study

from fairseq_maelm.files import conll
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.sweep.folder import FINISHED, Outcome, outcomes_of, read_settings
from fairseq_maelm.sweep.log import log_records, training_seconds
from fairseq_maelm.sweep.plan import import_file
from fairseq_maelm.sweep.tables import markdown_table, mean_and_interval, with_interval

_domain_study = import_file(Path(__file__).with_name("table.py"))
score, tidy = _domain_study.score, _domain_study.tidy

_FIELDS = ("row", "seed", "what", "value")


def _method(places: Any, name: str) -> str:
    return str(places["plan"]["methods"][places["method"]][name])


def _fine_tuning_rate(places: Any) -> str:
    """Return the rate with the highest score on dev; the first rate before there is a score."""
    found: list[Outcome] = []
    if (places["output"] / "settings.json").exists():
        own = {"row": _method(places, "rates-of"), "task": places["task"]}
        found = [each for each in outcomes_of(places["output"], "choice", **own) if each.state == FINISHED]
    if not found:
        return str(places["fine-tuning-rates"]).split()[0]
    return str(max(found, key=lambda each: float(each.result["dev"])).axes["fine-tuning-rate"])


@cache
def _count_examples(file: Path) -> int:
    """Count the sentences of a CoNLL file, or the records of a .jsonl file."""
    if file.suffix == ".conll":
        return len(conll.read(file, conll.Layout("conll", "-1")).sentences)
    return sum(1 for _ in numbered_lines(file, blank=False))


def _epochs(places: Any) -> int:
    """Return the number of epochs in which fine-tuning sees the examples that the plan asks for."""
    examples = _count_examples(Path(places.text("{folder}/train.{kind}")))
    return math.ceil(int(places["fine-tuning-examples"]) / examples)


PLACES = {
    "domains": lambda places: places["plan"]["domains"],
    "samples": lambda places: places["plan"]["samples"],
    "user-dir": lambda places: study.USER_DIR,
    "objective": lambda places: _method(places, "objective"),
    "more": lambda places: _method(places, "more"),
    "warm-up": lambda places: int(places["updates"]) // 10,
    "interval": lambda places: max(1, int(places["updates"]) // 4),
    "classified": lambda places: [places["output"] / "tasks" / name for name in str(places["probed"]).split()],
    "epochs": _epochs,
    "chosen-fine-tuning-rate": _fine_tuning_rate,
}


# Results of steps: name of what was measured -> value.


def adapted(places: Any, log: Path) -> dict[str, Any]:
    """Return the loss on held-out text of the domain at the end, and the seconds that training took."""
    return {"bits": study.last_loss(log)["loss"], "seconds": training_seconds(log)}


def bits(places: Any, log: Path) -> dict[str, Any]:
    """Return the loss of a validation."""
    return {f"bits, {places['sample-name']}": study.last_loss(log)["loss"]}


def pairs(places: Any, log: Path) -> dict[str, Any]:
    """Return the accuracy on BLiMP's pairs in percent."""
    return {"BLiMP": 100 * study.last_json(log)["overall"]["sum"]}


def rank(places: Any, log: Path) -> dict[str, Any]:
    """Return effective ranks of real tokens, of all tokens with masks and of masks, and what only masks have.

    The last are the percentage of their energy outside of real text's leading directions, and the further directions.
    """
    (model,) = json.loads((Path(places.text("{results}_analysis")) / "results.json").read_bytes())
    ranks = {(own["condition"], own["token_set"]): own["effective_rank"] for own in model["ranks"]}
    (outside,) = [own for own in model["subspace"] if own["reference"] == "whole"]
    return {
        "rank, no masks": ranks["whole", "real"],
        "rank, with masks": ranks["masked", "all"],
        "rank, masks": ranks["masked", "mask"],
        "energy of masks outside": 100 * outside["mask_energy_outside"],
        "directions of masks alone": outside["mask_dimensions"],
    }


def probes(places: Any, log: Path) -> dict[str, Any]:
    """Return the accuracies of linear probes on frozen states in percent: mean of states, not whitened."""
    (model,) = read_json(Path(places.text("{results}_probing")) / "results.json")["models"]
    return {
        f"frozen, {'tags' if own['set'] == 'tagging' else own['set']}": 100 * own["value"]
        for own in model["rows"]
        if own["measure"].startswith("logistic") and not own.get("whitened") and own["pooling"] in ("mean", None)
    }


def dev(places: Any, log: Path) -> dict[str, Any]:
    """Return the score on dev after the last epoch."""
    last = [record for _, record in log_records(log, ["valid"])][-1]
    return {"dev": last["valid_f1" if places["kind"] == "conll" else "valid_accuracy"]}


def rate(places: Any, log: Path) -> dict[str, Any]:
    """Return the rate of a fine-tuning."""
    return {"fine-tuning rate": float(places["chosen-fine-tuning-rate"])}


# Records and tables


class Record(NamedTuple):
    """One value: of a row, with a seed or a tried rate, and what was measured."""

    row: str
    seed: str
    what: str
    value: float


def _records(outcome: Outcome, metrics: Mapping[str, str]) -> list[Record]:
    axes = outcome.axes
    task = axes.get("task", "")
    if axes["step"] == "test":
        metric = metrics[task]
        return [Record(axes["row"], axes["seed"], f"{task}, {metric}", outcome.result[_domain_study.METRICS[metric]])]
    seed = axes.get("seed") or axes["fine-tuning-rate"]
    return [
        Record(axes["row"], seed, f"{task}, {what}" if task else what, float(value))
        for what, value in outcome.result.items()
    ]


def write(folder: Path) -> str:
    """Write the records of a study into results.csv and its tables into table.md; return the tables."""
    settings = read_settings(folder)
    metrics = {task: fields["metric"] for task, fields in settings["tasks"].items()}
    steps = ("adaptation", "loss", "sentences", "rank", "probes", "choice", "fine-tuning", "test")
    finished = [each for step in steps for each in outcomes_of(folder, step) if each.state == FINISHED]
    records = [record for each in finished for record in _records(each, metrics)]
    with open(folder / "results.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([_FIELDS, *((*record[:3], f"{record.value:.6g}") for record in records)])
    text = tables(records)
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


def read(path: Path) -> list[Record]:
    """Read records that were kept."""
    with open(path, encoding="utf-8", newline="") as file:
        return [Record(own["row"], own["seed"], own["what"], float(own["value"])) for own in csv.DictReader(file)]


def tables(records: list[Record]) -> str:
    """Return tables: means over seeds, differences between methods, both with 95 % intervals, and tried rates."""
    measured = [each for each in records if each.seed.isdecimal()]
    tried = [each for each in records if not each.seed.isdecimal()]
    rows = list(dict.fromkeys(each.row for each in measured))
    lines = []
    for what in dict.fromkeys(each.what for each in measured):
        cells = [[each.value for each in measured if (each.row, each.what) == (row, what)] for row in rows]
        lines.append([what, *(_cell(values) for values in cells)])
    compared, differing = _differences(measured)
    rates = [[each.row, each.what, each.seed, f"{each.value:.4g}"] for each in tried]
    return (
        f"{markdown_table(['', *rows], lines)}\n\nDifferences of runs with equal seeds (paired t):\n\n"
        f"{markdown_table(['', *compared], differing)}\n\nRates that were tried, with seed 1:\n\n"
        f"{markdown_table(['row', 'what', 'rate', 'value'], rates)}\n"
    )


def _differences(measured: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Return a column for each row that is compared with the MLM of its domain and size, and the lines of the table."""
    values = {(each.row, each.what, each.seed): each.value for each in measured}
    others = {row: row.rpartition("mae-lm")[0] or row.rpartition("half")[0] for row, _, _ in values}
    pairs = {row: f"{start}mlm" for row, start in others.items() if start}
    lines = []
    for what in dict.fromkeys(each.what for each in measured):
        cells = []
        for row, mlm in pairs.items():
            seeds = [seed for own, name, seed in values if (own, name) == (row, what) and (mlm, what, seed) in values]
            cells.append(_cell([values[row, what, seed] - values[mlm, what, seed] for seed in seeds], "+.2f"))
        lines.append([what, *cells])
    return [f"{row} - {mlm}" for row, mlm in pairs.items()], lines


def _cell(values: list[float], style: str = ".4g") -> str:
    if not values:
        return "–"
    found = mean_and_interval(values)
    return with_interval(style, found["mean"], found["low"], found["high"])


if __name__ == "__main__":
    sys.stdout.write(tables(read(Path(sys.argv[1]))))
