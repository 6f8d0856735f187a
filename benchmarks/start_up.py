"""How long a run takes to its first batch, and in what memory, on a corpus of 10^9 tokens.

    python benchmarks/start_up.py --output benchmarks/results/start_up.json

The corpus is simulated: an index of lines and documents of realistic lengths, and a .bin of that size that takes no
space on disk and reads as zeros. Each break mode is measured in a separate process, from the task's set-up through
the cutting of blocks, the order and the batches of the epoch to the first batch.
"""

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

LINES_PER_DOCUMENT = 25
VOCABULARY = 32_000
# Of fairseq's memory-mapped index: magic, version, code of uint16, number of items.
HEADER = struct.Struct("<9sQBQ")


def simulated_line_sizes(tokens: int, mean: float) -> np.ndarray:
    """<int32>[lines] log-normal lengths, a blank line (one token) behind every document, about ``tokens`` in all."""
    generator = np.random.default_rng(0)
    blank = 1 / LINES_PER_DOCUMENT
    lines = int(tokens / ((1 - blank) * mean + blank))
    # The mean of a log-normal distribution is exp(mu + sigma ** 2 / 2).
    sizes = np.clip(generator.lognormal(np.log(mean) - 0.32, 0.8, lines).round(), 2, 4000).astype(np.int32)
    sizes[generator.random(lines) < blank] = 1
    return sizes


def write_corpus(folder: Path, tokens: int, mean: float) -> dict[str, int]:
    """Write dict.txt, train.idx and an empty train.bin of the right size."""
    sizes = simulated_line_sizes(tokens, mean)
    (folder / "dict.txt").write_text("".join(f"piece{number} 1\n" for number in range(VOCABULARY)))
    ends = np.cumsum(sizes, dtype=np.int64)
    with open(folder / "train.idx", "wb") as index:
        index.write(HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, len(sizes)))
        index.write(sizes.tobytes())
        index.write(((ends - sizes) * 2).tobytes())
    with open(folder / "train.bin", "wb") as data:
        data.truncate(int(ends[-1]) * 2)
    return {"lines": len(sizes), "tokens": int(ends[-1])}


def peak_memory() -> float:
    """Return this process's peak resident memory in 10^6 bytes, pages of mapped files included.

    Linux only: the portable ru_maxrss begins with the memory of the process that started this one.
    """
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def measure(folder: Path, mode: str, max_tokens: int) -> dict[str, Any]:
    """Start up as fairseq-train does; return the seconds of each step and the memory."""
    from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig

    result: dict[str, Any] = {"break_mode": mode, "imports_megabytes": round(peak_memory())}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        wall, processor = time.monotonic(), time.process_time()
        yield
        result[f"{name}_seconds"] = round(time.monotonic() - wall, 2)
        result[f"{name}_processor_seconds"] = round(time.process_time() - processor, 2)

    defaults = {name: field.default for name, field in MaelmTaskConfig.__dataclass_fields__.items()}
    config = SimpleNamespace(**{**defaults, "data": str(folder), "seed": 1, "sample_break_mode": mode})
    with step("whole"):
        with step("load"):
            task = MaelmTask.setup_task(config)
            task.load_dataset("train")
        with step("batches"):
            batches = task.get_batch_iterator(
                task.datasets["train"], max_tokens=max_tokens, max_positions=512, required_batch_size_multiple=8
            )
        with step("first_batch"):
            first = next(iter(batches.next_epoch_itr()))
    result |= {"blocks": len(task.datasets["train"]), "batches": len(batches), "first": first["nsentences"]}
    return {**result, "peak_megabytes": round(peak_memory())}


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the result, as JSON")
    parser.add_argument("--tokens", type=float, default=1e9, help="of the corpus (1e9)")
    parser.add_argument("--mean", type=float, default=40, help="tokens of a line on average (40)")
    parser.add_argument("--break-modes", nargs="+", default=["complete_doc", "none", "complete", "eos"])
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a batch (16,384)")
    parser.add_argument("--folder", type=Path, help="where to put 300 MB of temporary files for 10^9 tokens")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "MODE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(Path(arguments.measure[0]), arguments.measure[1], arguments.max_tokens)))
        return
    result: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 2), "break_modes": []}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result["corpus"] = write_corpus(Path(folder), int(arguments.tokens), arguments.mean)
        for mode in arguments.break_modes:
            command = [sys.executable, __file__, "--measure", folder, mode, "--max-tokens", str(arguments.max_tokens)]
            finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result["break_modes"].append(json.loads(finished.stdout.splitlines()[-1]))
            print(json.dumps(result["break_modes"][-1]), flush=True)
    result |= {
        "load_after": round(os.getloadavg()[0], 2),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("numpy", "torch", "fairseq-fixed")},
        "date": time.strftime("%Y-%m-%d"),
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
