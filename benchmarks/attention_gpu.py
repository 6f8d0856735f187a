"""Compare the costs of attention backends with a learned relative bias on a GPU.

    python benchmarks/attention_gpu.py --output attention.json [--ways NAME ...] [--sweep]

Every way is first checked against the written-out attention in float64, gradients included. Then forward, and forward
with backward, are timed in turn, round after round, in one process; medians count. A way that fails or is wrong is
reported and left out; where it is the package's own, the program fails. The table comes last. ``--sweep`` tries block
sizes of our kernels before that and goes on with the best. ``--device cpu --tiny`` runs all of it at a toy size with
TRITON_INTERPRET=1 in the environment: its correctness is that of the kernels, its times mean nothing.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention_ways import OURS, WAYS, Problem, Way
from training_step.clocks import machine, synchronize
from training_step.report import table

from fairseq_maelm.modules.attention.triton import launch

# Error of a result against float64, as a part of its norm, that is still rounding.
LARGEST_ERROR = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-5}
KERNELS = ("forward", "query gradient", "key and value gradient", "pair gradient")
CANDIDATES = [
    launch.Block(*numbers)
    for numbers in [
        *[(64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2)],
        *[(128, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 3), (128, 128, 8, 1)],
    ]
]


def reason_of(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]


def check(problem: Problem, ways: dict[str, type[Way]]) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Run each way once without dropout; return what is wrong with which, and the errors of all."""
    exact = {True: problem.exact(), False: problem.without_bias().exact()}
    faults: dict[str, str] = {}
    errors: dict[str, list[float]] = {}
    for name, way in ways.items():
        try:
            pairs = zip(way(problem, 0.0).results(), exact[way.biased])
            errors[name] = [float((found.double() - right).norm() / right.norm()) for found, right in pairs]
            # NaN passes no comparison.
            if not all(error < LARGEST_ERROR[problem.qkv.dtype] for error in errors[name]):
                faults[name] = f"wrong: errors {errors[name]}"
        except Exception as error:  # A way that a version of torch lacks must not stop the others.
            faults[name] = reason_of(error)
    return faults, errors


def interleaved(functions: dict[str, Callable[[], Any]], device: str, rounds: int, times: int) -> dict[str, float]:
    """Median milliseconds of each function; all of them run in every round, after two calls that nobody times."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(times if number else 2):
                function()
            synchronize(device)
            if number:
                samples[name].append((time.perf_counter() - begin) / times * 1e3)
    return {name: statistics.median(values) for name, values in samples.items()}


def time_problem(
    problem: Problem, dropout: float, ways: dict[str, type[Way]], rounds: int, times: int
) -> dict[str, Any]:
    """Milliseconds and peak megabytes of each way: forward, forward and backward."""
    device = problem.qkv.device.type
    ready: dict[str, Way] = {}
    peaks: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, way in ways.items():
        if dropout > 0 and not way.drops:
            continue
        try:
            made = way(problem, dropout)
            made.both()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                made.both()
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e6
            ready[name] = made
        except Exception as error:
            failures[name] = reason_of(error)
    return {
        "shape": problem.shape,
        "dropout": dropout,
        "forward_ms": interleaved({name: each.forward for name, each in ready.items()}, device, rounds, times),
        "both_ms": interleaved({name: each.both for name, each in ready.items()}, device, rounds, times),
        "peak_mb": peaks,
        "failures": failures,
    }


def sweep(problem: Problem, candidates: list[launch.Block], seconds: float) -> dict[str, Any]:
    """Try block sizes, one kernel after the other, and keep the best for this process."""
    deadline = time.monotonic() + seconds
    place_of = (problem.qkv.element_size(), 64 if problem.qkv.shape[4] <= 64 else 128)
    report: dict[str, Any] = {}
    for kernel in KERNELS:
        place, milliseconds = (kernel, *place_of), {}
        original = launch.BLOCKS[place]
        for block in dict.fromkeys([original, *candidates]):
            if time.monotonic() > deadline:
                break
            launch.BLOCKS[place] = block
            try:
                milliseconds[block] = interleaved({"": Way(problem, 0.1).both}, problem.qkv.device.type, 2, 3)[""]
            except Exception as error:  # Too much shared memory, for instance.
                report[f"{kernel} {tuple(block)}"] = type(error).__name__
        launch.BLOCKS[place] = min(milliseconds, key=milliseconds.__getitem__) if milliseconds else original
        report |= {f"{kernel} {tuple(block)}": value for block, value in milliseconds.items()}
        report[f"{kernel}, best"] = tuple(launch.BLOCKS[place])
    return report


def table_of(runs: list[dict[str, Any]]) -> str:
    """Return the Markdown table of all results."""
    rows = []
    for run in runs:
        batch, heads, length, head_dim = run["shape"]
        # Two matrix products forward, five backward: what the arithmetic needs, whatever a kernel recomputes.
        flops = 7 * 2 * batch * heads * length * length * head_dim
        for name, both in sorted(run["both_ms"].items(), key=lambda item: item[1]):
            peak = f"{run['peak_mb'][name]:.0f}" if name in run["peak_mb"] else "-"
            numbers = [f"{run['forward_ms'][name]:.3f}", f"{both:.3f}", peak, f"{flops / both / 1e9:.0f}"]
            rows.append([str(length), str(run["dropout"]), name, *numbers])
    return table(["S", "dropout", "way", "forward ms", "forward + backward ms", "peak MB", "TFLOP/s"], rows)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a toy size in float32, to try the script itself")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="names (all)")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=[435, 307], help="tokens that the encoder sees")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sweep", action="store_true", help="try block sizes first")
    parser.add_argument("--sweep-seconds", type=float, default=150)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Check, sweep, measure, report."""
    options = arguments()
    if options.tiny:
        options.batch, options.lengths, options.rounds = 1, [17], 1
    small, heads, head_dim, positions = ((2, 19), 1, 16, 24) if options.tiny else ((4, 300), 12, 64, 512)
    dtype, times = (torch.float32, 1) if options.tiny else (torch.bfloat16, 5)
    torch.manual_seed(0)
    rest = (heads, head_dim, positions, dtype, options.device)
    ways = {name: WAYS[name] for name in options.ways}
    report: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "runs": []}
    report["faults"], report["errors"] = check(Problem(*small, *rest), ways)
    ways = {name: way for name, way in ways.items() if name not in report["faults"]}
    problems = [Problem(options.batch, length, *rest) for length in options.lengths]
    if options.sweep and OURS in ways:
        report["sweep"] = sweep(problems[0], CANDIDATES[: 1 if options.tiny else None], options.sweep_seconds)
    for problem, dropout in itertools.product(problems, (0.0, 0.1)):
        report["runs"].append(time_problem(problem, dropout, ways, options.rounds, times))
        # A run that is stopped keeps what is known so far.
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: report[name] for name in ("errors", "faults", "sweep") if name in report}, indent=1))
    print(table_of(report["runs"]))
    failures = [report["faults"], *(run["failures"] for run in report["runs"])]
    if any(OURS in each for each in failures):
        raise SystemExit(f"the package's kernels failed: {failures}")


if __name__ == "__main__":
    main()
