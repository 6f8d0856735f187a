"""Compare the costs of attention backends with a learned relative bias on a GPU.

    python benchmarks/attention_gpu.py --output attention.json

Every way is first checked against the written-out attention in float64, gradients included. Then forward, and forward
with backward, are timed in turn, round after round, in one process; medians count. A way that fails or is wrong is
reported and left out; where it is the package's own, the program fails. The table comes last. ``--device cpu --tiny``
runs all of it at a toy size with TRITON_INTERPRET=1 in the environment: its correctness is that of the kernels, its
times mean nothing.
"""

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from training_step.clocks import machine, synchronize
from training_step.report import table

from fairseq_maelm.modules.attention.triton import operator as attention_triton

OURS = "triton"


def plain_bias(table: Tensor, positions: Tensor) -> Tensor:
    """<float>[H, 2 P - 1] and <int64>[B, S] to <float>[B, H, S, S], as the package's plain backend does it."""
    batch, length = positions.shape
    distances = positions[:, None, :] - positions[:, :, None] + table.shape[1] // 2
    return table.index_select(1, distances.view(-1)).view(-1, batch, length, length).transpose(0, 1)


class Problem:
    """Random inputs: B sequences of S tokens at positions drawn from P, and the gradient of the output."""

    def __init__(
        self, batch: int, length: int, heads: int, head_dim: int, positions: int, dtype: torch.dtype, device: str
    ) -> None:
        self.max_positions = positions
        order = torch.rand(batch, positions, device=device).argsort(dim=1)
        self.positions = order[:, :length].sort(dim=1).values
        self.qkv = torch.randn(batch, length, 3, heads, head_dim, device=device, dtype=dtype).requires_grad_()
        self.table = torch.randn(heads, 2 * positions - 1, device=device).requires_grad_()
        self.gradient = torch.randn(batch, length, heads, head_dim, device=device, dtype=dtype)
        self.seed = torch.tensor([1], device=device)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, S, d_h)."""
        batch, length, _, heads, head_dim = self.qkv.shape
        return batch, heads, length, head_dim

    def without_bias(self) -> "Problem":
        """Return the same problem with a bias of zero."""
        other = copy.copy(self)
        other.table = torch.zeros_like(self.table).requires_grad_()
        return other

    def exact(self) -> list[Tensor]:
        """Output and gradients of queries, keys and values, and of the table, written out in float64."""
        qkv = self.qkv.detach().double().requires_grad_()
        table = self.table.detach().double().requires_grad_()
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + plain_bias(table, self.positions)
        output = (logits.softmax(dim=-1) @ value).transpose(1, 2)
        return [output.detach(), *torch.autograd.grad(output, (qkv, table), self.gradient.double())]


class Way:
    """One way of attention, from joint queries, keys and values to joined heads, differentiable in ``leaves``.

    All pay for bringing the gradients into the joint tensor, because the layer needs them there.
    """

    biased = True

    def __init__(self, problem: Problem, dropout: float) -> None:
        self.problem, self.dropout = problem, dropout
        self.leaves: list[Tensor] = [problem.qkv, problem.table]
        self.prepare()

    def prepare(self) -> None:
        """Build what a step builds once for all its layers."""

    def attend(self) -> Tensor:
        """<float>[B, S, H, d_h]; our kernels."""
        problem, rest = self.problem, (None, self.dropout, self.problem.seed)
        return attention_triton.relative_attention_qkv(problem.qkv, problem.table, problem.positions, *rest)

    def views(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values <float>[B, H, S, d_h]."""
        query, key, value = self.problem.qkv.permute(2, 0, 3, 1, 4)
        return query, key, value

    def forward(self) -> None:
        """Only forward."""
        with torch.no_grad():
            self.attend()

    def both(self) -> list[Tensor]:
        """Forward and backward: output, gradient of joint queries, keys and values, that of the table of a bias."""
        output = self.attend()
        return [output.detach(), *torch.autograd.grad(output, self.leaves, self.problem.gradient)]


class Unbiased(Way):
    """torch's own attention without a bias: what the bias is compared with."""

    biased = False

    def prepare(self) -> None:
        self.leaves = [self.problem.qkv]

    def attend(self) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*self.views(), dropout_p=self.dropout).transpose(1, 2)


WAYS: dict[str, type[Way]] = {
    "sdpa flash, no bias": Unbiased,
    OURS: Way,
}

# Error of a result against float64, as a part of its norm, that is still rounding.
LARGEST_ERROR = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-5}


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
            pairs = zip(way(problem, 0.0).both(), exact[way.biased])
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
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Check, measure, report."""
    options = arguments()
    batch, lengths, rounds = (1, [17], 1) if options.tiny else (128, [435, 307], 9)
    small, heads, head_dim, positions = ((2, 19), 1, 16, 24) if options.tiny else ((4, 300), 12, 64, 512)
    dtype, times = (torch.float32, 1) if options.tiny else (torch.bfloat16, 5)
    torch.manual_seed(0)
    rest = (heads, head_dim, positions, dtype, options.device)
    report: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "runs": []}
    report["faults"], report["errors"] = check(Problem(*small, *rest), WAYS)
    ways = {name: way for name, way in WAYS.items() if name not in report["faults"]}
    problems = [Problem(batch, length, *rest) for length in lengths]
    for problem, dropout in itertools.product(problems, (0.0, 0.1)):
        report["runs"].append(time_problem(problem, dropout, ways, rounds, times))
        # A run that is stopped keeps what is known so far.
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: report[name] for name in ("errors", "faults")}, indent=1))
    print(table_of(report["runs"]))
    failures = [report["faults"], *(run["failures"] for run in report["runs"])]
    if any(OURS in each for each in failures):
        raise SystemExit(f"the package's kernels failed: {failures}")


if __name__ == "__main__":
    main()
