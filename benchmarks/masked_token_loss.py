"""Memory and time of the masked tokens' loss: vocabulary projection, cross-entropy, gradients and accuracy.

    python benchmarks/masked_token_loss.py --output benchmarks/results/masked_token_loss.json

Contenders, each in a separate process: this package's loss; the plain way, logits and F.cross_entropy; and fairseq's,
log-probabilities in single precision and F.nll_loss. They get the same numbers, and their losses must agree. Memory is
the peak of a forward and backward pass above what was there before it: inputs and parameters do not count, gradients
do. On a CPU the processor time of all threads is shown, which other processes disturb less than the clock; both are
written.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.modules.linear_cross_entropy import linear_cross_entropy

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def by_maelm(states: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute this package's loss."""
    result = linear_cross_entropy(states, weight, bias, target)
    return result.loss, result.correct


def plainly(states: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, cross-entropy in single precision, argmax."""
    logits = F.linear(states, weight, bias)
    loss = F.cross_entropy(logits.float(), target, reduction="sum")
    with torch.no_grad():
        return loss, (logits.argmax(dim=-1) == target).sum()


def by_fairseq(states: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """RoBERTa's head and fairseq's criterion masked_lm, with the accuracy that it does not log."""
    logits = F.linear(states, weight) + bias
    loss = F.nll_loss(F.log_softmax(logits, dim=-1, dtype=torch.float32), target, reduction="sum")
    with torch.no_grad():
        return loss, (logits.argmax(dim=-1) == target).sum()


CONTENDERS: dict[str, Loss] = {"maelm": by_maelm, "plain": plainly, "fairseq": by_fairseq}


def draw_inputs(arguments: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, weight, bias and targets, the same for every contender."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int, scale: float) -> Tensor:
        values = torch.randn(*shape, generator=generator) * scale
        return values.to(arguments.device, getattr(torch, arguments.dtype)).requires_grad_()

    rows = arguments.rows[0]
    states = draw(rows, arguments.width, scale=1.0)
    weight = draw(arguments.vocabulary, arguments.width, scale=0.02)
    bias = draw(arguments.vocabulary, scale=0.02)
    target = torch.randint(arguments.vocabulary, (rows,), generator=generator)
    return states, weight, bias, target.to(arguments.device)


class Memory:
    """Bytes on a GPU, or of this process."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            self.before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> float:
        """Return the peak memory since the start, above the memory at the start, in 10^6 bytes."""
        if self.on_gpu:
            return (torch.cuda.max_memory_allocated() - self.before) / 1e6
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.before) / 1e6


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one contender in this process."""
    torch.set_num_threads(arguments.threads)
    on_gpu = arguments.device != "cpu"
    inputs = draw_inputs(arguments)
    memory = Memory(on_gpu)
    wall, processor, peaks = [], [], []
    for _ in range(arguments.repeats + 1):
        for tensor in inputs[:3]:
            tensor.grad = None
        start, start_processor = time.perf_counter(), time.process_time()
        loss, correct = CONTENDERS[arguments.contender](*inputs)
        loss.backward()
        if on_gpu:
            torch.cuda.synchronize()
        wall.append(round(time.perf_counter() - start, 4))
        processor.append(round(time.process_time() - start_processor, 4))
        peaks.append(memory.peak())
    # The first pass warms up, unless it is the only one.
    first = min(1, arguments.repeats)
    return {
        "loss": round(loss.item() / len(inputs[-1]), 5),
        "correct": int(correct),
        "peak_megabytes": round(peaks[0], 1),
        "wall_seconds": wall[first:],
        "processor_seconds": processor[first:],
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, {arguments.threads} thread(s)",
    }


def run(contender: str, arguments: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Measure one contender in a new process."""
    options = {"contender": contender, "rows": rows}
    for name in ("vocabulary", "width", "repeats", "threads", "device", "dtype"):
        options[name] = getattr(arguments, name)
    words = [f"--{name}={value}" for name, value in options.items()]
    finished = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{contender} failed with {rows} rows")
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def table(results: list[dict[str, Any]], clock: str) -> str:
    """Return a Markdown table of memory and time, with contenders of equal size next to each other."""
    lines = ["| predicted tokens | loss | peak memory, MB | of the logits | seconds |", "|---|---|---|---|---|"]
    for result in results:
        seconds = statistics.median(result[clock])
        lines.append(
            f"| {result['rows']} | {result['contender']} | {result['peak_megabytes']:.0f} "
            f"| {result['peak_megabytes'] / result['logits_megabytes']:.2f} | {seconds:.4g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the result, as JSON")
    parser.add_argument("--rows", type=int, nargs="+", default=[1638], help="predicted tokens (40 %% of 8 x 512)")
    parser.add_argument("--vocabulary", type=int, default=64_000, help="symbols (64,000)")
    parser.add_argument("--width", type=int, default=768, help="of the model (768)")
    parser.add_argument("--repeats", type=int, default=5, help="timed passes after the first, which warms up (5)")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU (1)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", help="of states and parameters: float32, bfloat16 or float16")
    parser.add_argument("--contender", choices=CONTENDERS, help="measure this one in this process, and nothing else")
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps(measure(arguments)))
        return
    load = os.getloadavg()[0]
    results = []
    for rows in arguments.rows:
        logits = rows * arguments.vocabulary * getattr(torch, arguments.dtype).itemsize / 1e6
        for contender in CONTENDERS:
            sizes = {"contender": contender, "rows": rows, "logits_megabytes": round(logits, 1)}
            results.append({**sizes, **run(contender, arguments, rows)})
        losses = [result["loss"] for result in results if result["rows"] == rows]
        if max(losses) - min(losses) > 1e-3 * max(losses):
            raise SystemExit(f"the losses differ: {losses}")
    print(table(results, "wall_seconds" if arguments.device != "cpu" else "processor_seconds"))
    if arguments.output:
        settings = {name: getattr(arguments, name) for name in ("vocabulary", "width", "dtype", "repeats")}
        result = {
            **settings,
            "results": results,
            "load_before_and_after": [round(load, 2), round(os.getloadavg()[0], 2)],
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "date": time.strftime("%Y-%m-%d"),
        }
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
