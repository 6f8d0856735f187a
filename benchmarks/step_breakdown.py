"""Where the time of a pretraining step goes on a CPU, kernel by kernel, and what its bare matrix products take.

    python benchmarks/step_breakdown.py --data DATA --output benchmarks/results/step_breakdown.json

DATA is a folder of `maelm prepare corpus`. Contenders take turns in one process, a step each under torch's profiler,
round after round; the matrix products of their steps are run alone in the same rounds. The table is written next to the
JSON; it has medians over rounds, as shares of the time of the bare products.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from training_step.clocks import machine  # noqa: E402
from training_step.contenders import CONTENDERS, label  # noqa: E402
from training_step.cost import step_products  # noqa: E402
from training_step.metrics import Spread, spread  # noqa: E402
from training_step.products import BareProducts  # noqa: E402
from training_step.report import table  # noqa: E402
from training_step.session import Session  # noqa: E402
from training_step.settings import SIZES, Settings  # noqa: E402
from training_step.store import layout  # noqa: E402
from training_step.worker import make_session  # noqa: E402

# The first group that has a part of the kernel's name takes it; "other" takes the rest.
GROUPS = {
    "matrix products": ("mm", "matmul", "linear"),
    "attention, fused": ("scaled_dot_product",),
    "softmax": ("softmax", "logsumexp", "aten::exp_"),
    "GELU": ("gelu",),
    "dropout": ("random", "bernoulli", "dropout", "addcmul", "aten::ge", "aten::lt"),
    "layer norm": ("layer_norm",),
    "optimizer": ("adam", "Optimizer"),
    "gradient norm": ("norm", "foreach"),
    "embeddings": ("embedding", "index", "gather", "scatter"),
    "copies": ("copy", "cat", "clone", "contiguous", "stack", "fill", "zero"),
    "sums and products of elements": ("add", "mul", "sub", "div", "sum", "neg"),
}
DEFAULT_CONTENDERS = ("maelm", "mlm", "roberta")
# The authors' fairseq hides the installed one, so it needs a separate process.
CHOICES = tuple(name for name, contender in CONTENDERS.items() if contender.kind != "authors")


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with dict.txt, train.bin and train.idx")
    parser.add_argument(
        "--output", type=Path, required=True, help="result file (.json); the table is written next to it"
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=CHOICES, default=DEFAULT_CONTENDERS, help="(maelm mlm roberta)"
    )
    parser.add_argument("--size", choices=SIZES, default="base", help="of all models (base)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence (512)")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step (4)")
    parser.add_argument("--masking", type=float, default=0.15, help="fraction (0.15)")
    parser.add_argument("--dropout", type=float, default=0.1, help="of all contenders (0.1)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="(fp32)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(all cores)")
    parser.add_argument("--rounds", type=int, default=5, help="over all contenders (5)")
    return parser.parse_args(words)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that all contenders share."""
    return Settings.of_size(
        arguments.size,
        length=arguments.length,
        sequences=arguments.batch,
        masking=arguments.masking,
        dropout=arguments.dropout,
        precision=arguments.precision,
        device="cpu",
        threads=arguments.threads,
        num_workers=0,
    )


def group_of(kernel: str) -> str:
    """Return the group of a kernel or an autograd node, given its name."""
    return next((group for group, parts in GROUPS.items() if any(part in kernel for part in parts)), "other")


def grouped(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds of each group, of kernels and their own seconds."""
    seconds: dict[str, float] = defaultdict(float)
    for kernel, own in kernels:
        seconds[group_of(kernel)] += own
    return dict(seconds)


def profiled_step(session: Session) -> dict[str, float]:
    """Seconds of each group in one training step; "total" by the wall clock, "other" with what no kernel took."""
    batch = session.take_prepared()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        session.step(batch)
        total = time.perf_counter() - start
    seconds = grouped((event.key, event.self_cpu_time_total / 1e6) for event in profiler.key_averages())
    seconds["other"] = total - sum(own for group, own in seconds.items() if group != "other")
    return {**seconds, "total": total}


def bare_seconds(products: BareProducts, occurrences: dict[Any, int]) -> float:
    """Seconds of all matrix products of a step, run alone."""
    return sum(count * products.seconds(shape)["wall"] for shape, count in occurrences.items())


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all rounds: of each contender the groups' shares of the time of the bare products."""
    settings = settings_of(arguments)
    sessions, occurrences = {}, {}
    for name in arguments.contenders:
        sessions[name] = make_session(name, settings, str(arguments.data.resolve()), None, [])
        occurrences[name] = step_products(name, settings, sessions[name].build())
        sessions[name].step(sessions[name].take_prepared())
    products = BareProducts("cpu", arguments.precision, 1)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sessions}
    for number in range(arguments.rounds):
        for name, session in sessions.items():
            rounds[name].append({**profiled_step(session), "bare": bare_seconds(products, occurrences[name])})
        sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": machine(),
        "settings": settings.as_dict(),
        "rounds": arguments.rounds,
        "shares": {name: shares(own) for name, own in rounds.items()},
    }


def shares(rounds: list[dict[str, float]]) -> dict[str, Spread]:
    """Return each group's time relative to the bare products: median, minimum and maximum over rounds."""
    return {
        group: spread(seconds.get(group, 0.0) / seconds["bare"] for seconds in rounds)
        for group in (*GROUPS, "other", "total")
    }


def report(content: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    found = {name: {group: values[0] for group, values in own.items()} for name, own in content["shares"].items()}
    rows = [
        [group, *(f"{found[name][group]:.3f}" for name in found)]
        for group in (*GROUPS, "other", "total")
        if any(each[group] >= 0.0005 for each in found.values())
    ]
    head = f"{Settings.from_dict(content['settings']).describe()}; bare matrix products of the same step: 1\n\n"
    return head + table(["time / bare products", *(label(name) for name in found)], rows) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write the results."""
    arguments = arguments_of(words)
    torch.set_num_threads(arguments.threads)
    content = measure(arguments)
    arguments.output.write_text(layout(content) + "\n", encoding="utf-8")
    arguments.output.with_suffix(".md").write_text(report(content), encoding="utf-8")
    sys.stdout.write(report(content))


if __name__ == "__main__":
    main()
