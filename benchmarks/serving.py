"""Tokens per second of encoding on a CPU: the hub interface, Hugging Face folders, ONNX in single precision and 8 bits.

    python benchmarks/serving.py --data DATA --output benchmarks/results/serving_cpu.json

DATA is a folder of `maelm prepare corpus`, for its vocabulary; the weights are random unless --checkpoint names others.
The checkpoint is exported by `maelm export`, verification included. Every contender runs in a separate process; they
are measured in turn, round after round, and the table holds medians over rounds, of speeds and of ratios. Sequences
have full length, without padding, and gradients are off everywhere.
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_step.metrics import spread
from training_step.store import layout

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_maelm import MaelmModel
from fairseq_maelm.hf import open_pretrained
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.importing.checkpoint import untrained_state
from fairseq_maelm.interop.onnx.onnx_file import MODEL_FILE, QUANTIZED_FILE, OnnxEncoder
from fairseq_maelm.interop.onnx.run import export_onnx
from fairseq_maelm.libraries import import_transformers
from fairseq_maelm.models.config import MaelmModelConfig, complete_config
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.text.dictionary import load_dictionary

# Name -> what it is, for the table. The first one is what the others are compared with.
CONTENDERS = {
    "hub": "hub interface",
    "mpnet": "transformers, `--format mpnet`",
    "maelm": "transformers, `--format maelm`",
    "onnx": "onnxruntime, single precision",
    "int8": "onnxruntime, 8 bits",
}

Encode = Callable[[np.ndarray], Any]


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with dict.txt and sentencepiece.bpe.model")
    parser.add_argument(
        "--output", type=Path, required=True, help="result file (.json); the table is written next to it (.md)"
    )
    parser.add_argument("--checkpoint", type=Path, help="its weights and size (random ones of --size)")
    parser.add_argument("--size", choices=SIZES, default="maelm_base", help="of the random model (maelm_base)")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="(all)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="sequences (1 32)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 512], help="tokens of a sequence (32 512)")
    parser.add_argument("--rounds", type=int, default=7, help="over all contenders (7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of one measurement (1)")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="of the table (wall)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each contender (all cores)")
    return parser.parse_args(words)


def random_checkpoint(data: Path, size: str, path: Path) -> None:
    """Write a checkpoint of a named size with fresh weights over the vocabulary of a data folder."""
    config = MaelmModelConfig(_name=size)
    complete_config(config)
    torch.manual_seed(1)
    model = MaelmModel(config, load_dictionary(str(data)))
    torch.save(untrained_state(model.state_dict(), size, {}, {}), path)


def export_all(checkpoint: Path, data: Path, folder: Path, contenders: list[str]) -> None:
    """Export a checkpoint in every format that a contender needs."""
    for form in ("mpnet", "maelm"):
        if form in contenders:
            export(checkpoint, data, folder / form, ExportSettings(form, architecture="encoder"))
    if {"onnx", "int8"} & set(contenders):
        export_onnx(checkpoint, data, folder / "onnx", ExportSettings("onnx", int8="int8" in contenders))


def open_contender(name: str, checkpoint: Path, data: Path, folder: Path, threads: int) -> Encode:
    """Return a function from tokens <int64>[B, S] to last states, without gradients."""
    torch.set_num_threads(threads)
    if name in ("onnx", "int8"):
        encoder = OnnxEncoder(folder / "onnx" / {"onnx": MODEL_FILE, "int8": QUANTIZED_FILE}[name], threads)
        return lambda tokens: encoder(tokens, np.ones_like(tokens))
    if name == "hub":
        interface = MaelmModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(data.resolve()))
        return torch.inference_mode()(lambda tokens: interface.extract_features(torch.from_numpy(tokens)))
    model = open_pretrained("AutoModel", folder / name).eval()

    def encode(tokens: np.ndarray) -> Any:
        batch = torch.from_numpy(tokens)
        return model(input_ids=batch, attention_mask=torch.ones_like(batch)).last_hidden_state

    return torch.inference_mode()(encode)


def serve(connection: Any, name: str, places: tuple[Path, Path, Path], threads: int, symbols: int) -> None:
    """Measure what the parent process asks for until it asks for nothing more."""
    encode = open_contender(name, *places, threads)
    connection.send("ready")
    while (asked := connection.recv()) is not None:
        batch, length, seconds = asked
        tokens = np.random.default_rng(1).integers(4, symbols - 1, (batch, length))
        connection.send(measure(lambda tokens=tokens: encode(tokens), seconds))


def measure(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Call until the time is over; seconds of a call by the wall clock and of the processor.

    The first call wakes what slept while others took their turns, and is left out unless it alone takes the time.
    """
    calls, wall, processor = 1, time.perf_counter(), time.process_time()
    call()
    if time.perf_counter() - wall < seconds:
        calls, wall, processor = 0, time.perf_counter(), time.process_time()
    while calls == 0 or time.perf_counter() - wall < seconds:
        call()
        calls += 1
    return {"wall": (time.perf_counter() - wall) / calls, "processor": (time.process_time() - processor) / calls}


class Contender:
    """A contender's process.

    Args:
        name: of ``CONTENDERS``.
        places: the checkpoint, the data folder and that of the exports.
        threads: of its computations.
        symbols: of the vocabulary.
    """

    def __init__(self, name: str, places: tuple[Path, Path, Path], threads: int, symbols: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, name, places, threads, symbols), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def measure(self, batch: int, length: int, seconds: float) -> dict[str, float]:
        """Seconds of one call."""
        self._connection.send((batch, length, seconds))
        answer: dict[str, float] = self._connection.recv()
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


def rounds_of(contenders: dict[str, Contender], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return interleaved measurements, each with "contender", "batch", "length", "round", "wall" and "processor".

    Each round begins with another contender.
    """
    results = []
    names = list(contenders)
    for number in range(arguments.rounds):
        first = number % len(names)
        for batch in arguments.batches:
            for length in arguments.lengths:
                for name in names[first:] + names[:first]:
                    taken = contenders[name].measure(batch, length, arguments.seconds)
                    results.append({"contender": name, "batch": batch, "length": length, "round": number, **taken})
        sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
    return results


Case = tuple[str, int, int]


def times_of(results: list[dict[str, Any]], clock: str) -> dict[Case, list[float]]:
    """Seconds of a call by contender, batch and length, a number for each round."""
    times: dict[Case, list[float]] = {}
    for each in results:
        times.setdefault((each["contender"], each["batch"], each["length"]), []).append(each[clock])
    return times


def speeds(results: list[dict[str, Any]], clock: str) -> dict[Case, float]:
    """Tokens per second by contender, batch and length: of the median over rounds."""
    return {case: case[1] * case[2] / statistics.median(own) for case, own in times_of(results, clock).items()}


def ratios(results: list[dict[str, Any]], clock: str) -> dict[Case, float]:
    """Return the speed relative to the first contender: the median of the ratios within rounds.

    What slows a round down slows both, so that these are surer than the speeds.
    """
    times = times_of(results, clock)
    first = next(iter(times))[0]
    return {
        case: statistics.median(other / own for other, own in zip(times[(first, *case[1:])], times[case]))
        for case in times
    }


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarize all rounds for each contender and case, by each clock.

    Returns:
        Median, minimum and maximum of the seconds of a call, and the ratio to the first contender.
    """
    times = {clock: times_of(results, clock) for clock in ("wall", "processor")}
    compared = {clock: ratios(results, clock) for clock in times}
    return [
        {
            "contender": name, "batch": batch, "length": length, "rounds": len(own),
            **{clock: spread(times[clock][(name, batch, length)]) for clock in times},
            **{f"{clock}_ratio": float(f"{compared[clock][(name, batch, length)]:.7g}") for clock in times},
        }
        for (name, batch, length), own in times["wall"].items()
    ]  # fmt: skip


def table(results: list[dict[str, Any]], clock: str = "wall") -> str:
    """Tokens per second in Markdown, and in brackets the ratio to the first contender."""
    found, compared = speeds(results, clock), ratios(results, clock)
    names = list(dict.fromkeys(name for name, _, _ in found))
    cases = list(dict.fromkeys((batch, length) for _, batch, length in found))
    columns = [f"{batch} x {length}" for batch, length in cases]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(cases)]
    for name in names:
        cells = [f"{found[(name, *case)]:,.0f} ({compared[(name, *case)]:.2f})" for case in cases]
        lines.append(f"| {CONTENDERS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def machine(threads: int) -> dict[str, Any]:
    """Describe the machine and the settings of the measurement."""
    import onnxruntime

    transformers = import_transformers()
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "processor": model.partition(":")[2].strip() or platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": {**versions, "onnxruntime": onnxruntime.__version__, "python": platform.python_version()},
    }


def main(words: list[str] | None = None) -> None:
    """Export, measure and write the results."""
    arguments = arguments_of(words)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder, checkpoint = Path(temporary), arguments.checkpoint
        if checkpoint is None:
            checkpoint = folder / "checkpoint.pt"
            random_checkpoint(arguments.data, arguments.size, checkpoint)
        export_all(checkpoint, arguments.data, folder, arguments.contenders)
        symbols = len(load_dictionary(str(arguments.data)))
        places = (checkpoint, arguments.data, folder)
        contenders = {name: Contender(name, places, arguments.threads, symbols) for name in arguments.contenders}
        results = rounds_of(contenders, arguments)
        for contender in contenders.values():
            contender.close()
    content = {
        "date": datetime.now().isoformat(sep=" ", timespec="seconds"),
        "machine": machine(arguments.threads),
        "load_before_and_after": [load, os.getloadavg()[0]],
        "model": arguments.size if arguments.checkpoint is None else arguments.checkpoint.name,
        "seconds": arguments.seconds,
        "measurements": summary(results),
    }
    arguments.output.write_text(layout(content) + "\n", encoding="utf-8")
    head = (
        f"Tokens per second ({arguments.clock} clock), {content['model']}, {arguments.threads} threads; columns: "
        "sequences x tokens\n\n"
    )
    arguments.output.with_suffix(".md").write_text(head + table(results, arguments.clock) + "\n", encoding="utf-8")
    sys.stdout.write(head + table(results, arguments.clock) + "\n")


if __name__ == "__main__":
    main()
