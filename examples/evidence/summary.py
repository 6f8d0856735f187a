"""What the finished programs of the study say: one dictionary, with means, intervals and paired tests."""

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import study
from plan import RANDOM, Plan, Pretraining
from scipy import stats

from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.log import log_records

# In every table, before the tasks.
LOSS, PRIMARY = "loss", "primary"


def corpus_tokens(data: Path) -> int:
    """Return the tokens of the training text."""
    tokens: int = json.loads((data / "manifest.json").read_bytes())["counts"]["train"]["tokens"]
    return tokens


def last_json(log: Path) -> dict[str, Any]:
    """Return the last line of JSON that a program wrote.

    Raises:
        ValueError: there is none.
    """
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError("no metrics in the log")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, 95 % interval by Student's t, and number of values; no interval for a single one."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return {"mean": mean, "low": None, "high": None, "count": count}
    half = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": count}


def collect(plan: Plan, runs: Sequence[Pretraining], output: Path, vocabulary: int) -> dict[str, Any]:
    """Return all numbers of the page; programs that are not finished are left out."""
    rows = [row for run in runs if (row := _row(plan, run, output, vocabulary)) is not None]
    trials = [
        {"method": marker.parent.name, "loss": result["loss"]}
        for marker in sorted((output / "runs").glob("*/result.json"))
        if "seed" not in marker.parent.name and (result := read_json(marker)) and "loss" in result
    ]
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for budget, name in dict.fromkeys((row["budget"], row["row"]) for row in rows):
        own = [row["measures"] for row in rows if (row["budget"], row["row"]) == (budget, name)]
        measures = [measure for measure in own[0] if all(measure in each for each in own)]
        cells = {measure: mean_and_interval([each[measure] for each in own]) for measure in measures}
        table.setdefault(budget, {})[name] = cells
    return {
        "title": plan.content["title"],
        "words": plan.content["words"],
        "tokens": corpus_tokens(output / "data"),
        "vocabulary": vocabulary,
        "chosen": read_json(output / "chosen.json"),
        "trials": trials,
        "runs": rows,
        "table": table,
        "differences": differences(plan, rows, output),
    }


def _row(plan: Plan, run: Pretraining, output: Path, vocabulary: int) -> dict[str, Any] | None:
    folder = output / "runs" / run.name
    result = read_json(folder / "result.json")
    if result is None or "loss" not in result:
        return None
    measures = {LOSS: result["loss"], **_task_scores(plan, run, folder)}
    for name, own in plan.measurements_of(run.budget).items():
        place = folder / name.replace(" ", "_")
        content = read_json(place / "files" / own["file"] if "file" in own else place / "result.json")
        if content and "failed" not in content:
            measures |= _numbers(own, content)
    updates = run.updates(vocabulary)
    log = folder / "result.log"
    curve = [[count * run.options["max-tokens"], loss] for count, loss in study.losses(log).items()]
    spent = {int(record["num_updates"]): record["train_wall"] for _, record in log_records(log, ["train_inner"])}
    return {
        "name": run.name,
        "row": run.row,
        "budget": run.budget,
        "seed": run.seed,
        "updates": updates,
        "tokens": updates * run.options["max-tokens"],
        "flop": updates * run.flops(vocabulary),
        "seconds": sum(spent.values()),
        "curve": curve,
        "measures": measures,
    }


def _task_scores(plan: Plan, run: Pretraining, folder: Path) -> dict[str, float]:
    """Return the mean over fine-tunings of each task, in percent, and the primary measure if all of it is there."""
    scores = {}
    for task in plan.tasks_of(run.budget):
        metric = plan.tasks[task].get("metric", "accuracy")
        markers = sorted((folder / task.replace(" ", "_")).glob("seed_*/result.json"))
        found = [result[metric] for marker in markers if metric in (result := read_json(marker) or {})]
        if found:
            scores[task] = float(np.mean(found))
    primary = plan.content["primary"]
    if all(task in scores for task in primary):
        return {PRIMARY: float(np.mean([scores[task] for task in primary])), **scores}
    return scores


def _numbers(own: dict[str, Any], content: Any) -> dict[str, float]:
    """Take the numbers that a measurement declares from what its command wrote."""
    scale = own.get("scale", 1)
    found = {label: scale * float(value_at(content, path)) for label, path in own.get("values", {}).items()}
    for label, wanted in own.get("rows", {}).items():
        rows = value_at(content, own["list"])
        last = max(row["layer"] for row in rows)
        chosen = [row[own["number"]] for row in rows if _matches(row, wanted, last)]
        if not chosen:
            raise ValueError(f"no row of the results matches {label}: {wanted}")
        found[label] = scale * float(np.mean(chosen))
    return found


def _matches(row: dict[str, Any], wanted: dict[str, Any], last: int) -> bool:
    wanted = {**wanted, "layer": last} if wanted.get("layer") == -1 else wanted
    return all(
        fnmatch(row.get(name) or "", value) if isinstance(value, str) else row.get(name) == value
        for name, value in wanted.items()
    )


def value_at(content: Any, path: str) -> Any:
    """Return what is at a path of names and places with dots between them."""
    for name in path.split("."):
        content = content[int(name) if isinstance(content, list) else name]
    return content


def differences(plan: Plan, rows: Sequence[dict[str, Any]], output: Path) -> list[dict[str, Any]]:
    """Compare the last method with each of the others at every budget.

    By seeds: the interval of the mean difference of runs with equal seeds (paired t). By examples: that of the primary
    tasks' mean difference in correct predictions over the same examples, seeds taken together, by the normal
    approximation; it says nothing about other seeds.
    """
    *others, last = plan.methods
    found = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        for other in others:
            sides = [
                {row["seed"]: row for row in rows if (row["row"], row["budget"]) == (name, budget)}
                for name in (last, other)
            ]
            seeds = sorted(set(sides[0]) & set(sides[1]))
            pairs = [(sides[0][seed], sides[1][seed]) for seed in seeds]
            for measure in pairs[0][0]["measures"] if pairs else ():
                values = [
                    a["measures"][measure] - b["measures"][measure]
                    for a, b in pairs
                    if measure in a["measures"] and measure in b["measures"]
                ]
                if values:
                    own = {"budget": budget, "first": last, "second": other, "measure": measure}
                    found.append({**own, "by": "seeds", **mean_and_interval(values)})
            by_examples = _by_examples(plan, pairs, output)
            if by_examples is not None:
                own = {"budget": budget, "first": last, "second": other, "measure": PRIMARY}
                found.append({**own, "by": "examples", **by_examples})
    return found


def _by_examples(plan: Plan, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], output: Path) -> Any:
    means, variances, count = [], [], 0
    for task in plan.content["primary"]:
        differing = []
        for pair in pairs:
            correct = [_correct(plan, task, output / "runs" / row["name"]) for row in pair]
            if any(each is None for each in correct):
                return None
            differing.append(100 * (correct[0] - correct[1]))
        if not differing:
            return None
        per_example = np.mean(differing, axis=0)
        means.append(per_example.mean())
        variances.append(per_example.var(ddof=1) / len(per_example))
        count += len(per_example)
    mean, half = float(np.mean(means)), 1.96 * float(np.sum(variances)) ** 0.5 / len(means)
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": count}


def _correct(plan: Plan, task: str, folder: Path) -> Any:
    """Return the share of fine-tunings that predict each example's label, <float64>[n]; None before they are done."""
    files = sorted((folder / task.replace(" ", "_")).glob("seed_*/predictions.tsv"))
    labels = plan.tasks[task].get("labels")
    if not files or labels is None:
        return None
    with open(plan.files / labels, encoding="utf-8") as lines:
        wanted = np.array([line.rstrip("\n").split("\t")[-1] for line in lines])
    predicted = []
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        predicted.append(np.array([line.split("\t")[0] for line in lines]) == wanted)
    return np.mean(predicted, axis=0)


def best_random(table: dict[str, dict[str, Any]], measure: str) -> float | None:
    """Return the mean of random weights in a measure, from the largest shape that has it."""
    for rows in reversed(list(table.values())):
        if measure in rows.get(RANDOM, {}):
            mean: float = rows[RANDOM][measure]["mean"]
            return mean
    return None
