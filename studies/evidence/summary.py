"""What the finished programs of the study say: one dictionary, with means, intervals and paired tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from plan import RANDOM, Plan, Pretraining
from records import PRETRAINING, Records, correct_examples, fine_tunings

from fairseq_maelm.sweep.tables import mean_and_interval

# In every table, before the tasks.
LOSS, PRIMARY = "loss", "primary"


def collect(plan: Plan, runs: Sequence[Pretraining], records: Records) -> dict[str, Any]:
    """Return all numbers of the page; programs that are not finished are left out."""
    about = records.study()
    rows = [row for run in runs if (row := _row(plan, run, records, about["vocabulary"])) is not None]
    trials = [(run.name, records.read(run)) for run in plan.all_trials(about["chosen"])]
    tried = [{"method": name, "loss": own[PRETRAINING]["loss"]} for name, own in trials if own]
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for budget, name in dict.fromkeys((row["budget"], row["row"]) for row in rows):
        own = [row["measures"] for row in rows if (row["budget"], row["row"]) == (budget, name)]
        measures = [measure for measure in own[0] if all(measure in each for each in own)]
        cells = {measure: mean_and_interval([each[measure] for each in own]) for measure in measures}
        table.setdefault(budget, {})[name] = cells
    return {
        "title": plan.content["title"],
        "words": plan.content["words"],
        **about,
        "trials": tried,
        "runs": rows,
        "table": table,
        "equal": equal(plan, rows, about.get("seconds an update", {})),
        "differences": differences(plan, rows, {run.name: records.read(run) for run in runs}),
        "from_first": from_first(plan, rows),
    }


def _row(plan: Plan, run: Pretraining, records: Records, vocabulary: int) -> dict[str, Any] | None:
    results = records.read(run)
    if not results:
        return None
    own, updates, tokens = results[PRETRAINING], run.updates(vocabulary), run.options["max-tokens"]
    scores = _task_scores(plan, run, results)
    for name in plan.measurements(run.budget):
        scores |= results.get(name, {})
    return {
        "name": run.name,
        "row": run.row,
        "budget": run.budget,
        "seed": run.seed,
        "updates": updates,
        "tokens": updates * tokens,
        "flop": updates * run.flops(vocabulary),
        "seconds": own["seconds"],
        "curve": [[int(count) * tokens, loss] for count, loss in own["losses"].items()],
        "measures": {LOSS: own["loss"], **_primary(plan, scores), **scores},
        "intermediate": _intermediate(plan, run, results, plan.updates_at(run, vocabulary)),
    }


def _intermediate(
    plan: Plan, run: Pretraining, results: dict[str, Any], places: dict[str, int]
) -> list[tuple[int, float]]:
    """Return updates and primary measure of the checkpoints inside a pretraining."""
    found = []
    for part, updates in places.items():
        own = {name.removeprefix(f"{part}/"): each for name, each in results.items() if name.startswith(f"{part}/")}
        found += [(updates, mean) for mean in _primary(plan, _task_scores(plan, run, own)).values()]
    return found


def _task_scores(plan: Plan, run: Pretraining, results: dict[str, Any]) -> dict[str, float]:
    """Return the mean over fine-tunings of each task, in percent."""
    scores = {}
    for task in plan.tasks_of(run.budget):
        metric = plan.tasks[task].get("metric", "accuracy")
        found = [results[name][metric] for name in fine_tunings(results, task) if metric in results[name]]
        if found:
            scores[task] = float(np.mean(found))
    return scores


def _primary(plan: Plan, scores: dict[str, float]) -> dict[str, float]:
    """Return the primary measure, the mean of one or more scores; nothing before all of them are there."""
    names = plan.content["primary"]
    return {PRIMARY: float(np.mean([scores[name] for name in names]))} if all(name in scores for name in names) else {}


def equal(plan: Plan, rows: Sequence[dict[str, Any]], seconds: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Compare methods at equal updates, equal FLOPs and equal time: as far as the method that gets least far.

    Values between two checkpoints are interpolated. The learning rate has fallen to its end only in the method that
    gets least far. ``seconds`` maps shape -> method -> seconds of an update; where they are missing time is not
    compared.
    """
    found = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        own = [row for row in rows if row["budget"] == budget and row["row"] in plan.methods]
        timed = seconds.get(plan.budgets[budget]["shape"], {})
        for axis in ("updates", "flop", "seconds") if len({row["row"] for row in own}) > 1 else ():
            rates = [timed.get(row["row"], 0.0) if axis == "seconds" else row[axis] / row["updates"] for row in own]
            if not all(rates):
                continue
            limit = min(rate * row["updates"] for rate, row in zip(rates, own))
            for method in dict.fromkeys(row["row"] for row in own):
                at = [(row, limit / rate) for rate, row in zip(rates, own) if row["row"] == method]
                each = {LOSS: mean_and_interval([_between(_losses(row), updates) for row, updates in at])}
                if all(len(_scores(row)) > 1 for row, _ in at):
                    each[PRIMARY] = mean_and_interval([_between(_scores(row), updates) for row, updates in at])
                found.append({"budget": budget, "axis": axis, "limit": limit, "method": method, "measures": each})
    return found


def _losses(row: dict[str, Any]) -> list[tuple[float, float]]:
    per_update = row["tokens"] / row["updates"]
    return [(tokens / per_update, loss) for tokens, loss in row["curve"]]


def _scores(row: dict[str, Any]) -> list[tuple[float, float]]:
    end = [(row["updates"], row["measures"][PRIMARY])] if PRIMARY in row["measures"] else []
    return [*row["intermediate"], *end]


def _between(points: Sequence[tuple[float, float]], place: float) -> float:
    return float(np.interp(place, *zip(*points)))


def differences(plan: Plan, rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the last method with each of the others at every budget.

    By seeds: the interval of the mean difference of runs with equal seeds (paired t). By examples: that of the primary
    tasks' mean difference in correct predictions over the same examples, seeds taken together, by the normal
    approximation; it says nothing about other seeds.
    """
    *others, last = plan.methods
    found = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        for other in others:
            pairs = _pairs(rows, budget, last, other)
            own = {"budget": budget, "first": last, "second": other}
            found += [{**own, "by": "seeds", **each} for each in _by_seeds(pairs)]
            by_examples = _by_examples(plan, pairs, results)
            if by_examples is not None:
                found.append({**own, "measure": PRIMARY, "by": "examples", **by_examples})
    return found


def from_first(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare each method with the plan's first one at every budget, by seeds as in ``differences``."""
    base, *others = plan.methods
    return [
        {"budget": budget, "first": other, "second": base, **each}
        for budget in dict.fromkeys(row["budget"] for row in rows)
        for other in others
        for each in _by_seeds(_pairs(rows, budget, other, base))
    ]


def _pairs(rows: Sequence[dict[str, Any]], budget: str, *names: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the runs of two methods with equal seeds."""
    first, second = (
        {row["seed"]: row for row in rows if (row["row"], row["budget"]) == (name, budget)} for name in names
    )
    return [(first[seed], second[seed]) for seed in sorted(set(first) & set(second))]


def _by_seeds(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    found = []
    for measure in pairs[0][0]["measures"] if pairs else ():
        sides = [[run["measures"].get(measure) for run in pair] for pair in pairs]
        values = [first - second for first, second in sides if first is not None and second is not None]
        if values:
            found.append({"measure": measure, **mean_and_interval(values)})
    return found


def _by_examples(plan: Plan, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], results: dict[str, Any]) -> Any:
    """Return the difference in the primary measure over examples; None if the examples of some part are unknown."""
    means, variances, count = [], [], 0
    for task in plan.content["primary"]:
        differing = []
        for pair in pairs:
            correct = [_correct(task, results[row["name"]]) for row in pair]
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


def _correct(task: str, results: dict[str, Any]) -> Any:
    """Return the share of fine-tunings that predict each example's label, <float64>[n]; None before they are done."""
    found = [results[name].get("correct") for name in fine_tunings(results, task)]
    return np.mean([correct_examples(text) for text in found], axis=0) if found and all(found) else None


def best_random(table: dict[str, dict[str, Any]], measure: str) -> float | None:
    """Return the mean of random weights in a measure, from the largest shape that has it."""
    for rows in reversed(list(table.values())):
        if measure in rows.get(RANDOM, {}):
            mean: float = rows[RANDOM][measure]["mean"]
            return mean
    return None
