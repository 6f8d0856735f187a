"""The benchmark's arithmetic: medians, paired ratios, utilization."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from training_step.cost import shape_flops, step_flops, step_products
from training_step.flops import utilization
from training_step.products import Shape
from training_step.settings import Settings

# Dense bf16 and fp16 of the vendor's datasheet, FLOP/s, by a part of the GPU's name.
DATASHEET = {"H200": 989e12, "H100": 989e12, "GH200": 989e12, "A100": 312e12}


class Ratio(NamedTuple):
    """A median with its spread."""

    median: float
    low: float
    high: float


def ratio(times: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How many times faster than the reference: median, least and greatest of the repeats' own ratios.

    Both were measured in turn, so that what slowed the machine down in one repeat slowed both.

    Raises:
        ValueError: if there are no pairs.
    """
    if not times or len(times) != len(reference):
        raise ValueError(f"{len(times)} and {len(reference)} times make no pairs")
    ratios = [theirs / ours for ours, theirs in zip(times, reference)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def datasheet_peak(machine: dict[str, Any], precision: str) -> float | None:
    """The GPU's rate in FLOP/s by its datasheet; None on other machines and for fp32."""
    gpu = machine.get("gpu", "")
    if precision == "fp32":
        return None
    return next((rate for part, rate in DATASHEET.items() if part in gpu), None)


def bare_seconds(occurrences: dict[Shape, int], seconds: dict[Shape, float]) -> float:
    """Time of all matrix products of a step, from the time of each shape."""
    return sum(count * seconds[shape] for shape, count in occurrences.items())


def peak_rate(seconds: dict[Shape, float]) -> float:
    """The best rate of any of the step's products, FLOP/s."""
    return max(shape_flops(shape) / taken for shape, taken in seconds.items())


def evaluate(run: dict[str, Any], clock: str = "wall") -> list[dict[str, Any]]:
    """The metrics of one side-by-side run, a row for each contender, in the order in which they were given.

    Args:
        run: as ``training_step.measure`` made it.
        clock: "wall", or "processor" for a machine that others use as well.

    Returns:
        rows with "name" and either "error" or: "seconds", "tokens_per_second", "tokens_per_second_with_data",
        "ratios" to every reference, "over_bare", "utilization", "datasheet_utilization", "memory", "gigaflops",
        "rate" in TFLOP/s, and "profile".
    """
    settings = Settings.from_dict(run["settings"])
    products = [
        {tuple(shape): each["seconds"][clock] for shape, each in zip(run["products"]["shapes"], repeat)}
        for repeat in run["products"]["repeats"]
    ]
    return [_row(run, settings, name, products, clock) for name in run["contenders"]]


def _row(
    run: dict[str, Any], settings: Settings, name: str, products: list[dict[Any, float]], clock: str
) -> dict[str, Any]:
    measured = run["contenders"][name]
    if "error" in measured:
        return {"name": name, "error": measured["error"]}
    times = [each[clock] for each in measured["prepared"]]
    seconds = statistics.median(times)
    flops = step_flops(name, settings, measured["sizes"])
    row: dict[str, Any] = {
        "name": name,
        "seconds": seconds,
        "tokens_per_second": settings.tokens / seconds,
        "tokens_per_second_with_data": settings.tokens / statistics.median(each[clock] for each in measured["loaded"]),
        "ratios": _ratios(run, times, clock),
        "gigaflops": flops / settings.tokens / 1e9,
        "rate": flops / seconds / 1e12,
        "memory": measured["memory"],
        "profile": measured["profile"],
    }
    if products:
        occurrences = step_products(name, settings, measured["sizes"])
        pairs = list(zip(times, products))
        row["over_bare"] = statistics.median(taken / bare_seconds(occurrences, each) for taken, each in pairs)
        row["utilization"] = statistics.median(utilization(flops, taken, peak_rate(each)) for taken, each in pairs)
    datasheet = datasheet_peak(run["machine"], settings.precision)
    if datasheet:
        row["datasheet_utilization"] = utilization(flops, seconds, datasheet)
    return row


def _ratios(run: dict[str, Any], times: list[float], clock: str) -> dict[str, Ratio]:
    found = {}
    for reference in run["references"]:
        measured = run["contenders"].get(reference, {"error": "not measured"})
        if "error" not in measured:
            found[reference] = ratio(times, [each[clock] for each in measured["prepared"]])
    return found
