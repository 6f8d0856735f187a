"""Time a step of MLM, MAE-LM and MAE-LM with the shared decoder: one size, eager and compiled, several batches.

    python benchmarks/shapes.py --data DATA --size 14m --output shapes.json

One process measures one size, contender after contender, with prepared batches of 512 tokens a sequence, 15 % masked.
Every row is written at once; the same command again goes on with those that are missing. With ``--profile FILE`` the
rows with the lowest and the highest MFU are profiled in the end. ``--device cpu`` rehearses at toy size.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402
from training_step import store  # noqa: E402
from training_step.clocks import PeakMemory, machine  # noqa: E402
from training_step.contenders import label, split_name  # noqa: E402
from training_step.cost import shape_flops, step_flops  # noqa: E402
from training_step.fairseq_session import FairseqSession  # noqa: E402
from training_step.metrics import utilization  # noqa: E402
from training_step.products import BareProducts  # noqa: E402
from training_step.report import table  # noqa: E402
from training_step.session import run_steps  # noqa: E402
from training_step.settings import SIZES, Settings  # noqa: E402

# The paper's layers at base size, ModernBERT's at all others.
POST_NORM, MODERN = ("mlm", "maelm", "maelm+shared"), ("modern_mlm", "modern", "modern+shared")
MODES = ("", "+compile", "+graphs")
# A product of square matrices of this size is taken for the peak.
PEAK, TOY_PEAK = 8192, 256
WARM_UP, STEPS, ROUNDS = 5, 10, 2
PROFILED = 3


class Shapes:
    """The measurement of one size; ``rows``, of this size and of others, are as they are written."""

    def __init__(self, options: argparse.Namespace, end: float) -> None:
        self.options, self.end, self.toy = options, end, options.device == "cpu"
        batches = (2, 3) if self.toy else options.batches
        self.settings = [
            Settings.of_size(
                "tiny" if self.toy else options.size,
                1 if self.toy else None,
                length=32 if self.toy else 512,
                sequences=sequences,
                masking=0.15,
                dropout=0.1 if options.size == "base" else 0.0,
                precision=options.precision,
                device=options.device,
                threads=1 if self.toy else 8,
                num_workers=0,
            )
            for sequences in batches
        ]
        self.rows = store.read_runs(options.output)
        self.memory = PeakMemory(options.device)
        self.peak = 0.0

    def names(self) -> list[str]:
        """Return the contenders, those that are compiled last."""
        plain = POST_NORM if self.options.size == "base" else MODERN
        return [name + mode for mode in MODES for name in plain]

    def measure(self) -> bool:
        """Measure until the time is up; return whether it was enough."""
        size = TOY_PEAK if self.toy else PEAK
        products = BareProducts(self.options.device, self.options.precision, 20)
        self.peak = shape_flops((1, size, size, size)) / products.seconds((1, size, size, size))["wall"]
        for name in self.names():
            known = {(row["size"], row["name"], row["batch"]) for row in self.rows}
            left = [own for own in self.settings if (self.options.size, name, own.sequences) not in known]
            for row in self.measure_model(name, left) if left else ():
                self.rows.append(row)
                store.write_runs(self.options.output, self.rows)
            if time.monotonic() > self.end:
                return False
        return True

    def measure_model(self, name: str, batches: list[Settings]) -> Iterator[dict[str, Any]]:
        """Yield the row of each batch; a failure is a row too, and ends the others of its model."""
        session = None
        for settings in batches:
            row = {"size": self.options.size, "name": name, "batch": settings.sequences}
            begin = time.monotonic()
            try:
                if session is None:
                    session, vocabulary = self.build(name, settings)
                yield {**row, **self.measure_batch(session, name, settings, vocabulary)}
            except Exception as error:  # Whatever the GPU refuses, the other rows are wanted.
                yield {**row, "error": f"{type(error).__name__}: {error}"[:300]}
                break
            if time.monotonic() + (time.monotonic() - begin) > self.end:
                break
        del session
        self.free()

    def build(self, name: str, settings: Settings) -> tuple[FairseqSession, int]:
        """Return the session of a contender, and its vocabulary."""
        torch._dynamo.reset()  # else the graphs of other models count towards the limit of each function
        contender, changes = split_name(name)
        session = FairseqSession(contender, settings, str(self.options.data), None, [], changes)
        return session, session.build()["vocabulary"]

    def measure_batch(self, session: FairseqSession, name: str, settings: Settings, vocabulary: int) -> dict[str, Any]:
        """Return speed, MFU and memory with a batch."""
        sizes = {**session.use(settings), "vocabulary": vocabulary}
        begin = time.monotonic()
        run_steps(session, 1, WARM_UP, loaded=False)
        ready = time.monotonic() - begin
        self.memory.reset()
        times = [run_steps(session, 1 if self.toy else STEPS, 0, loaded=False)["wall"] for _ in range(ROUNDS)]
        flops = step_flops(name, settings, sizes)
        return {
            "settings": settings.as_dict(),
            "sizes": sizes,
            "seconds": times,
            "warm_up_seconds": round(ready, 1),
            "tokens_per_second": round(settings.tokens / min(times)),
            "mfu": round(utilization(flops, min(times), self.peak), 4),
            "memory": self.memory.read(),
            "machine": {**machine(), "peak": self.peak},
        }

    def free(self) -> None:
        """Give back the memory of a model."""
        gc.collect()
        if self.options.device == "cuda":
            torch.cuda.empty_cache()

    def profile(self, path: Path) -> None:
        """Write where the time goes in the rows with the lowest and the highest MFU."""
        measured = [row for row in self.rows if row["size"] == self.options.size and "error" not in row]
        if not measured:
            return
        measured.sort(key=lambda row: row["mfu"])
        parts = []
        for row in (measured[0], measured[-1]):
            settings = Settings.from_dict(row["settings"])
            session, _ = self.build(row["name"], settings)
            run_steps(session, 1, WARM_UP, loaded=False)
            with torch.profiler.profile() as profiler:
                run_steps(session, PROFILED, 0, loaded=False)
            by = "self_cpu_time_total" if self.toy else "self_cuda_time_total"
            shown = profiler.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=70)
            parts.append(f"{label(row['name'])}, batch {row['batch']}, {PROFILED} steps\n{shown}")
            del session, profiler
            self.free()
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table of all rows."""
    header = ["", "size", "batch", "1,000 tokens/s", "TFLOP/s", "MFU (measured peak)", "memory, GB", "warm-up, s"]
    lines = []
    for row in rows:
        first = [label(row["name"]), row["size"], str(row["batch"])]
        if "error" in row:
            lines.append([*first, row["error"].partition("\n")[0][:60], "", "", "", ""])
            continue
        numbers = [f"{row['tokens_per_second'] / 1e3:,.1f}", f"{row['mfu'] * row['machine']['peak'] / 1e12:.4g}"]
        numbers += [f"{row['mfu']:.1%}", f"{row['memory'] / 1e9:.1f}", f"{row['warm_up_seconds']:.0f}"]
        lines.append([*first, *numbers])
    return table(header, lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of `maelm prepare corpus`")
    parser.add_argument("--output", type=Path, required=True, help="JSON file; the same for all sizes")
    parser.add_argument("--size", choices=[*SIZES], default="base", help="(base)")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 64, 256], help="sequences (128 64 256)")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16", "fp16"), help="(bf16)")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no other row begins (8)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses at toy size (cuda)")
    parser.add_argument("--profile", type=Path, help="text file for the profiles")
    return parser.parse_args(words)


def main() -> None:
    """Measure, profile, and print the table."""
    begin, options = time.monotonic(), arguments()
    shapes = Shapes(options, begin + 60 * options.minutes)
    enough = shapes.measure()
    if enough and options.profile:
        shapes.profile(options.profile)
    rows = [row for row in shapes.rows if row["size"] == options.size]
    print(table_of(rows))
    if not any("error" not in row for row in rows):
        raise SystemExit("nothing was measured")


if __name__ == "__main__":
    main()
