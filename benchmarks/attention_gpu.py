"""Compare the costs of attention with a learned relative bias, and of torch's attention without one, on a GPU.

    python benchmarks/attention_gpu.py --output attention.json

Forward, and forward with backward, are timed in turn, round after round, in one process; medians count. A way that
fails is reported and left out; where it is the package's own, the program fails. That results are right is what
`pytest -m gpu` tests. The table comes last. ``--device cpu --tiny`` runs all of it at a toy size with
TRITON_INTERPRET=1 in the environment: its times mean nothing.
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
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from training_step.clocks import machine, synchronize
from training_step.report import table

from fairseq_maelm.modules.attention.triton import operator as attention_triton

OURS, UNBIASED = "triton", "sdpa flash, no bias"


class Problem:
    """Random inputs: B sequences of S tokens at positions drawn from P, and the gradient of the output."""

    def __init__(
        self, batch: int, length: int, heads: int, head_dim: int, positions: int, dtype: torch.dtype, device: str
    ) -> None:
        order = torch.rand(batch, positions, device=device).argsort(dim=1)
        self.shape = (batch, heads, length, head_dim)
        self.positions = order[:, :length].sort(dim=1).values
        self.qkv = torch.randn(batch, length, 3, heads, head_dim, device=device, dtype=dtype).requires_grad_()
        self.table = torch.randn(heads, 2 * positions - 1, device=device).requires_grad_()
        self.gradient = torch.randn(batch, length, heads, head_dim, device=device, dtype=dtype)
        self.seed = torch.tensor([1], device=device)

    def attend(self, way: str, dropout: float) -> Tensor:
        """Return attention's output <float>[B, S, H, d_h]."""
        if way == OURS:
            rest = (self.positions, None, dropout, self.seed)
            return attention_triton.relative_attention_qkv(self.qkv, self.table, *rest)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*self.qkv.permute(2, 0, 3, 1, 4), dropout_p=dropout).transpose(1, 2)

    def forward(self, way: str, dropout: float) -> None:
        """Only forward."""
        with torch.no_grad():
            self.attend(way, dropout)

    def both(self, way: str, dropout: float) -> None:
        """Forward and backward, with the gradients of joint queries, keys and values, as the layer needs them."""
        leaves = [self.qkv, self.table] if way == OURS else [self.qkv]
        torch.autograd.grad(self.attend(way, dropout), leaves, self.gradient)


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


def time_problem(problem: Problem, dropout: float, rounds: int, times: int) -> dict[str, Any]:
    """Milliseconds and peak megabytes of each way: forward, forward and backward."""
    device = problem.qkv.device.type
    peaks: dict[str, float] = {}
    failures: dict[str, str] = {}
    forward: dict[str, Callable[[], Any]] = {}
    both: dict[str, Callable[[], Any]] = {}
    for way in (UNBIASED, OURS):
        try:
            problem.both(way, dropout)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                problem.both(way, dropout)
                peaks[way] = (torch.cuda.max_memory_allocated() - before) / 1e6
        except Exception as error:  # A way that a version of torch lacks must not stop the other.
            failures[way] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
        else:
            forward[way] = lambda way=way: problem.forward(way, dropout)  # type: ignore[misc]
            both[way] = lambda way=way: problem.both(way, dropout)  # type: ignore[misc]
    return {
        "shape": problem.shape,
        "dropout": dropout,
        "forward_ms": interleaved(forward, device, rounds, times),
        "both_ms": interleaved(both, device, rounds, times),
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
    """Measure and report."""
    options = arguments()
    batch, lengths, rounds = (1, [17], 1) if options.tiny else (128, [435, 307], 9)
    heads, head_dim, positions = (1, 16, 24) if options.tiny else (12, 64, 512)
    dtype, times = (torch.float32, 1) if options.tiny else (torch.bfloat16, 5)
    torch.manual_seed(0)
    report: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "runs": []}
    problems = [Problem(batch, length, heads, head_dim, positions, dtype, options.device) for length in lengths]
    for problem, dropout in itertools.product(problems, (0.0, 0.1)):
        report["runs"].append(time_problem(problem, dropout, rounds, times))
        # A run that is stopped keeps what is known so far.
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table_of(report["runs"]))
    failures = [run["failures"] for run in report["runs"] if run["failures"]]
    print(f"failures: {failures}" if failures else "nothing failed")
    if any(OURS in each for each in failures):
        raise SystemExit("the package's kernels failed")


if __name__ == "__main__":
    main()
