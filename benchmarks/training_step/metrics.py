"""The benchmark's arithmetic: medians, paired ratios, utilization."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from training_step.cost import shape_flops, step_flops, step_products
from training_step.products import Shape
from training_step.settings import Settings

# Dense bf16 and fp16 of the vendor's datasheet, FLOP/s, by a part of the GPU's name.
DATASHEET = {"H200": 989e12, "H100": 989e12, "GH200": 989e12, "A100": 312e12}
CLOCKS = ("wall", "processor")


class Spread(NamedTuple):
    """The median of some rounds, the least and the greatest."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value, in seven significant digits."""
    found = list(values)
    return Spread(*(float(f"{value:.7g}") for value in (statistics.median(found), min(found), max(found))))


def ratio(times: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return the speed relative to the reference: median, minimum and maximum of the ratios within repeats.

    Both were measured in turn, so that what slowed the machine down in one repeat slowed both. No pairs are a
    ValueError.
    """
    if not times or len(times) != len(reference):
        raise ValueError(f"{len(times)} times cannot be paired with {len(reference)} reference times")
    return spread(theirs / ours for ours, theirs in zip(times, reference))


def datasheet_peak(machine: dict[str, Any], precision: str) -> float | None:
    """Return the GPU's rate in FLOP/s by its datasheet; None on other machines and for fp32."""
    gpu = machine.get("gpu", "")
    if precision == "fp32":
        return None
    return next((rate for part, rate in DATASHEET.items() if part in gpu), None)


def utilization(flops: float, seconds: float, peak: float) -> float:
    """Return model FLOPs utilization: the share of ``peak`` operations a second that ``flops`` in ``seconds`` use."""
    if seconds <= 0.0 or peak <= 0.0:
        raise ValueError(f"time and peak must be positive, not {seconds} s and {peak} FLOP/s")
    return flops / seconds / peak


def bare_seconds(occurrences: dict[Shape, int], seconds: dict[Shape, float]) -> float:
    """Time of all matrix products of a step, from the time of each shape."""
    return sum(count * seconds[shape] for shape, count in occurrences.items())


def peak_rate(seconds: dict[Shape, float]) -> float:
    """Return the best rate of any of the step's products in FLOP/s."""
    return max(shape_flops(shape) / taken for shape, taken in seconds.items())


def summarize(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run of ``training_step.measure`` in its stored form: medians and ranges of times and of metrics.

    It has no "products"; each of "contenders" that did not fail has "sizes", "memory", "profile", the number of
    "rounds", and for each clock "seconds", "loaded_seconds", "ratios", "over_bare" and "utilization".
    """
    contenders = {
        name: measured if "error" in measured else _summary(run, name) for name, measured in run["contenders"].items()
    }
    return {**{name: value for name, value in run.items() if name != "products"}, "contenders": contenders}


def _summary(run: dict[str, Any], name: str) -> dict[str, Any]:
    measured = run["contenders"][name]
    kept = {field: measured[field] for field in ("sizes", "memory", "profile")}
    return {**kept, "rounds": len(measured["prepared"]), **{clock: _by_clock(run, name, clock) for clock in CLOCKS}}


def _by_clock(run: dict[str, Any], name: str, clock: str) -> dict[str, Any]:
    settings, measured = Settings.from_dict(run["settings"]), run["contenders"][name]
    times = [each[clock] for each in measured["prepared"]]
    products = [
        {tuple(shape): each["seconds"][clock] for shape, each in zip(run["products"]["shapes"], repeat)}
        for repeat in run["products"]["repeats"]
    ]
    found: dict[str, Any] = {
        "seconds": spread(times),
        "loaded_seconds": spread(each[clock] for each in measured["loaded"]) if measured["loaded"] else None,
        "ratios": _ratios(run, times, clock),
    }
    if products:
        occurrences = step_products(name, settings, measured["sizes"])
        flops = step_flops(name, settings, measured["sizes"])
        pairs = list(zip(times, products))
        found["over_bare"] = spread(taken / bare_seconds(occurrences, each) for taken, each in pairs)
        found["utilization"] = spread(utilization(flops, taken, peak_rate(each)) for taken, each in pairs)
    return found


def _ratios(run: dict[str, Any], times: list[float], clock: str) -> dict[str, Spread]:
    found = {}
    for reference in run["references"]:
        measured = run["contenders"].get(reference, {"error": "not measured"})
        if "error" not in measured:
            found[reference] = ratio(times, [each[clock] for each in measured["prepared"]])
    return found


def evaluate(run: dict[str, Any], clock: str = "wall") -> list[dict[str, Any]]:
    """Return a row of metrics for each contender of a run of ``summarize``, in their order.

    The clock is "wall", or "processor" for a machine that others use as well. Rows have "name" and either "error" or:
    "seconds", "tokens_per_second", "tokens_per_second_with_data", "ratios" to every reference, "over_bare",
    "utilization", "datasheet_utilization", "memory", "gigaflops", "rate" in TFLOP/s, "rounds" and "profile".
    """
    return [_row(run, Settings.from_dict(run["settings"]), name, clock) for name in run["contenders"]]


def _row(run: dict[str, Any], settings: Settings, name: str, clock: str) -> dict[str, Any]:
    measured = run["contenders"][name]
    if "error" in measured:
        return {"name": name, "error": measured["error"]}
    timed = measured[clock]
    loaded, seconds, flops = timed["loaded_seconds"], timed["seconds"][0], step_flops(name, settings, measured["sizes"])
    row: dict[str, Any] = {
        "name": name,
        "seconds": seconds,
        "tokens_per_second": settings.tokens / seconds,
        "tokens_per_second_with_data": loaded and settings.tokens / loaded[0],
        "ratios": {reference: Spread(*values) for reference, values in timed["ratios"].items()},
        "gigaflops": flops / settings.tokens / 1e9,
        "rate": flops / seconds / 1e12,
        **{field: timed[field][0] for field in ("over_bare", "utilization") if field in timed},
        **{field: measured[field] for field in ("memory", "rounds", "profile")},
    }
    datasheet = datasheet_peak(run["machine"], settings.precision)
    if datasheet:
        row["datasheet_utilization"] = utilization(flops, seconds, datasheet)
    return row
