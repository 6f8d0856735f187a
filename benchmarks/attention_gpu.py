"""What attention with a learned relative bias costs on a GPU, one way beside the other, and the matrix products' rate.

    python benchmarks/attention_gpu.py --output benchmarks/results/attention_gpu.json [--sweep]

Every way is first checked against the written-out attention in float64, gradients included. Then forward, and forward
with backward, are timed in turn, round after round, in one process; medians count. A way that fails or is wrong is
reported and left out. The table comes last. ``--sweep`` tries block sizes of our kernels before that and goes on with
the best. ``--device cpu --tiny`` runs all of it at a toy size with TRITON_INTERPRET=1 in the environment: its
correctness is that of the kernels, its times mean nothing.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from attention_gpu_variants import VARIANTS, Problem, plain_bias
from torch import Tensor

from fairseq_maelm.modules.attention.triton import launch

# Error of a bfloat16 or float16 result against float64, as a part of its norm, that is still rounding.
LARGEST_ERROR = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-5}
CANDIDATES = [
    launch.Block(*numbers)
    for numbers in [
        (64, 64, 4, 1),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 128, 4, 2),
        (128, 64, 4, 2),
        (128, 64, 8, 2),
        (64, 32, 4, 3),
        (128, 128, 8, 1),
    ]
]


def run_on_device(function: Callable[[], Any], device: str, times: int) -> float:
    """Run ``times`` times and return milliseconds for one."""
    if device == "cpu":
        begin = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - begin) / times * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def interleaved(functions: dict[str, Callable[[], Any]], device: str, rounds: int, times: int) -> dict[str, float]:
    """Median milliseconds of each function; all of them run in every round. Failures are left out."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for name, function in functions.items():
        run_on_device(function, device, 2)
        samples[name].clear()
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(run_on_device(function, device, times))
    return {name: statistics.median(values) for name, values in samples.items()}


# Correctness


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm; NaN never passes a comparison."""
    return float((result.double() - exact).norm() / exact.norm())


def reference(problem: Problem) -> list[Tensor]:
    """Output and gradients of queries, keys and values, and of the table, written out in float64."""
    qkv = problem.qkv.detach().double().requires_grad_()
    table = problem.table.detach().double().requires_grad_()
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + plain_bias(table, problem.positions)
    output = (logits.softmax(dim=-1) @ value).transpose(1, 2)
    output.backward(problem.gradient.double())
    assert qkv.grad is not None and table.grad is not None
    return [output.detach(), qkv.grad, table.grad]


def check(problem: Problem) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Run each way once without dropout; returns what is wrong with which, and the errors of the others."""
    biased, unbiased = reference(problem), reference(problem.without_bias())
    faults: dict[str, str] = {}
    errors: dict[str, list[float]] = {}
    for name, variant in VARIANTS.items():
        try:
            results = variant(problem, 0.0).results()
            exact = (biased if variant.biased else unbiased)[: len(results)]
            errors[name] = [relative_error(result, expected) for result, expected in zip(results, exact)]
            if not all(error < LARGEST_ERROR[problem.qkv.dtype] for error in errors[name]):
                faults[name] = f"wrong: errors {errors[name]}"
        except Exception as error:  # A way that a version of torch lacks must not stop the others.
            faults[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    return faults, errors


# Time


def time_problem(problem: Problem, dropout: float, faults: dict[str, str], rounds: int, times: int) -> dict[str, Any]:
    """Milliseconds and peak megabytes of each way that works: forward, forward and backward."""
    device = problem.qkv.device.type
    forward: dict[str, Callable[[], Any]] = {}
    both: dict[str, Callable[[], Any]] = {}
    peaks: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, variant in VARIANTS.items():
        if name in faults or (dropout > 0 and not variant.drops):
            continue
        try:
            ready = variant(problem, dropout)
            ready.forward()
            ready.both()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                ready.both()
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e6
            forward[name], both[name] = ready.forward, ready.both
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"[:300]
    return {
        "forward_ms": interleaved(forward, device, rounds, times),
        "both_ms": interleaved(both, device, rounds, times),
        "peak_mb": peaks,
        "failures": failures,
    }


def sweep(problem: Problem, candidates: list[launch.Block], seconds: float) -> dict[str, Any]:
    """Try block sizes, one kernel after the other, and keep the best for this process."""
    deadline = time.monotonic() + seconds
    element, width = problem.qkv.element_size(), 64 if problem.qkv.shape[4] <= 64 else 128
    ours, report = VARIANTS["triton"], {}
    for kernel in ("forward", "query gradient", "key and value gradient", "pair gradient"):
        place, milliseconds = (kernel, element, width), {}
        original = launch.BLOCKS[place]
        for block in dict.fromkeys([original, *candidates]):
            if time.monotonic() > deadline:
                break
            launch.BLOCKS[place] = block
            try:
                ready = ours(problem, 0.1)
                milliseconds[block] = interleaved({"": ready.both}, problem.qkv.device.type, 2, 3)[""]
            except Exception as error:  # Too much shared memory, for instance.
                report[f"{kernel} {tuple(block)}"] = f"{type(error).__name__}"
        launch.BLOCKS[place] = min(milliseconds, key=milliseconds.__getitem__) if milliseconds else original
        for block, value in sorted(milliseconds.items(), key=lambda item: item[1]):
            report[f"{kernel} {tuple(block)}"] = value
    report["best"] = {kernel: tuple(launch.BLOCKS[kernel, element, width]) for kernel, *_ in launch.BLOCKS}
    return report


def matrix_products(device: str, dtype: torch.dtype, rows: int, shapes: list[tuple[int, int]]) -> dict[str, float]:
    """TFLOP/s of random [rows, K] x [K, N]."""
    rates = {}
    for inner, outer in shapes:
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        weight = torch.randn(outer, inner, device=device, dtype=dtype)
        name = f"[{rows}, {inner}] x [{inner}, {outer}]"
        multiply = {name: lambda left=left, weight=weight: F.linear(left, weight)}
        milliseconds = interleaved(multiply, device, 5, 5)[name]
        rates[name] = 2 * rows * inner * outer / milliseconds / 1e9
    return rates


# Report


def table_of(report: dict[str, Any]) -> str:
    """Return the Markdown table of all results."""
    lines = [
        "| S | dropout | way | forward ms | forward + backward ms | peak MB | TFLOP/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in report["runs"]:
        batch, heads, length, head_dim = run["shape"]
        # Two matrix products forward, five backward: what the arithmetic needs, whatever a kernel recomputes.
        flops = 7 * 2 * batch * heads * length * length * head_dim
        for name, both in sorted(run["both_ms"].items(), key=lambda item: item[1]):
            peak = f"{run['peak_mb'][name]:.0f}" if name in run["peak_mb"] else "-"
            numbers = f"{run['forward_ms'][name]:.3f} | {both:.3f} | {peak} | {flops / both / 1e9:.0f}"
            lines.append(f"| {length} | {run['dropout']} | {name} | {numbers} |")
    lines += ["", "| what | |", "|---|---|"]
    lines += [f"| {name} | {value:.0f} TFLOP/s |" for name, value in report["matrix_products"].items()]
    lines += [f"| {name} | {value:.3f} ms |" for name, value in report["other_ms"].items()]
    lines += [f"| {name} | {reason} |" for name, reason in report["faults"].items()]
    lines += [f"| {name} | {reason} |" for run in report["runs"] for name, reason in run["failures"].items()]
    return "\n".join(lines)


def versions(device: str) -> dict[str, Any]:
    """What the numbers were measured with."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda, "device": gpu}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a toy size in float32, to try the script itself")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=[435, 307], help="tokens that the encoder sees")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sweep", action="store_true", help="try block sizes first")
    parser.add_argument("--sweep-seconds", type=float, default=180)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def save(report: dict[str, Any], output: Path | None) -> None:
    """Write what is known so far: a run that is stopped keeps it."""
    if output:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measure(problems: list[Problem], report: dict[str, Any], options: argparse.Namespace, times: int) -> None:
    """Add the times of every way at every length, without and with dropout, and of what lies beside attention."""
    for problem, dropout in itertools.product(problems, (0.0, 0.1)):
        timed = time_problem(problem, dropout, report["faults"], options.rounds, times)
        report["runs"].append({"shape": problem.shape, "dropout": dropout, **timed})
        save(report, options.output)
    other = {
        "dense bias of all layers from the table, forward and backward": problems[0].build_dense_bias,
    }
    report["other_ms"] = interleaved(other, problems[0].qkv.device.type, options.rounds, times)


def main() -> None:
    """Check, sweep, measure, report."""
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --device cpu --tiny tries the script")
    if options.tiny:
        options.batch, options.lengths, options.rounds = 1, [17], 1
    small, heads, head_dim, positions = ((2, 19), 1, 16, 24) if options.tiny else ((4, 300), 12, 64, 512)
    dtype, times = (torch.float32, 1) if options.tiny else (torch.bfloat16, 5)
    torch.manual_seed(0)
    report: dict[str, Any] = {"versions": versions(options.device), "date": time.strftime("%Y-%m-%d"), "runs": []}
    rest = (heads, head_dim, positions, dtype, options.device)
    report["faults"], report["errors"] = check(Problem(*small, *rest))
    save(report, options.output)
    problems = [Problem(options.batch, length, *rest) for length in options.lengths]
    if options.sweep:
        report["sweep"] = sweep(problems[0], CANDIDATES[: 1 if options.tiny else None], options.sweep_seconds)
        save(report, options.output)
    measure(problems, report, options, times)
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50304)]
    rows = 32 if options.tiny else 65536
    report["matrix_products"] = matrix_products(options.device, dtype, rows, shapes[: 1 if options.tiny else None])
    if not options.tiny:
        report["matrix_products"] |= matrix_products(options.device, dtype, 8192, [(8192, 8192)])
    save(report, options.output)
    print(json.dumps({key: report[key] for key in ("versions", "errors", "sweep") if key in report}, indent=1))
    print(table_of(report))


if __name__ == "__main__":
    main()
