"""Speed and memory of `maelm prepare corpus`, which turns text into .bin, against spm_encode and fairseq-preprocess.

    python benchmarks/corpus_preparation.py --text corpus.txt --output benchmarks/results/corpus_preparation.json

Both ways get the same text and the same sentencepiece model, start as commands, and run in turn; the medians count. The
other way gets the text already cleaned. Its first step is the command spm_encode where that is installed, otherwise the
loop over lines that a user of the Python library writes. At the end both train.bin must be equal, byte by byte.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_maelm.corpus import read_documents
from fairseq_maelm.files import sha256_of

MAELM = [sys.executable, "-m", "fairseq_maelm.cli"]
FAIRSEQ_PREPROCESS = [sys.executable, "-m", "fairseq_cli.preprocess"]
ENCODE_LINES = """
import sys
import sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[3], "w", encoding="utf-8") as pieces:
    for line in lines:
        pieces.write(" ".join(model.encode(line.rstrip("\\n"), out_type=str)) + "\\n")
"""


def write_excerpt(text: Path, megabytes: float, excerpt: Path) -> int:
    """Copy the first whole documents of a text, cleaned: at least ``megabytes`` 10^6 bytes, or all."""
    size = 0
    with open(excerpt, "w", encoding="utf-8") as stream:
        for document in read_documents(text):
            content = ("\n" if size else "") + "".join(f"{paragraph}\n" for paragraph in document)
            stream.write(content)
            size += len(content.encode("utf-8"))
            if size >= megabytes * 1e6:
                break
    return size


def run(command: list[str]) -> dict[str, float]:
    """Run a command; return its wall-clock time and the processor time of all its processes, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    wall = time.monotonic() - start
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} ... failed:\n{finished.stdout[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def by_maelm(text: Path, valid: Path, model: Path, output: Path, workers: int) -> dict[str, float]:
    """Text to .bin by this package."""
    shutil.rmtree(output, ignore_errors=True)
    command = [*MAELM, "prepare", str(text), "--valid", str(valid), "--sentencepiece-model", str(model)]
    return run([*command, "--workers", str(workers), "--output", str(output)])


def by_fairseq(text: Path, model: Path, dictionary: Path, output: Path, workers: int) -> dict[str, float]:
    """Text to .bin by sentencepiece and fairseq's own commands."""
    shutil.rmtree(output, ignore_errors=True)
    pieces = output.with_suffix(".pieces")
    encoder = shutil.which("spm_encode")
    if encoder:
        encode = [encoder, f"--model={model}", f"--output={pieces}", str(text)]
    else:
        encode = [sys.executable, "-c", ENCODE_LINES, str(model), str(text), str(pieces)]
    command = [*FAIRSEQ_PREPROCESS, "--only-source", "--srcdict", str(dictionary), "--trainpref", str(pieces)]
    times = [run(encode), run([*command, "--destdir", str(output), "--workers", str(workers)])]
    return {"wall": times[0]["wall"] + times[1]["wall"], "processor": sum(part["processor"] for part in times)}


def tree_of(process: int) -> list[int]:
    """Return a process and all its descendants."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [process, *(number for child in children for number in tree_of(int(child)))]


def memory_of(processes: Iterable[int]) -> int:
    """Bytes of memory of some processes, with shared pages counted once (proportional set size)."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def peak_memory(command: list[str]) -> int:
    """Return the peak memory of a command and its workers in bytes, sampled 20 times a second."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, memory_of(tree_of(process.pid)))
            time.sleep(0.05)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} ... failed")
    return peak


def measure_memory(text: Path, folder: Path, sizes: list[float], workers: int) -> dict[str, float]:
    """Peak memory in 10^6 bytes of the whole of `maelm prepare corpus`, training included, by 10^6 bytes of text."""
    peaks = {}
    for size in sizes:
        excerpt = folder / f"excerpt{size:g}.txt"
        write_excerpt(text, size, excerpt)
        output = folder / f"memory{size:g}"
        command = [*MAELM, "prepare", str(excerpt), "--output", str(output), "--valid-documents", "10"]
        command += ["--vocabulary-size", "8000", "--sample-megabytes", "5", "--workers", str(workers)]
        peaks[f"{size:g}"] = round(peak_memory(command) / 1e6, 1)
        print(f"peak memory with {size:g} MB of text: {peaks[f'{size:g}']} MB", flush=True)
    return peaks


def measure_speed(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure both ways in turn; return their times, and True if their results are equal."""
    text, valid = folder / "text.txt", folder / "valid.txt"
    size = write_excerpt(arguments.text, arguments.megabytes, text)
    valid.write_text("A validation text.\n")
    training = [*MAELM, "prepare", str(text), "--valid", str(valid), "--output", str(folder / "vocabulary")]
    trained = run([*training, "--vocabulary-size", str(arguments.vocabulary_size), "--workers", str(arguments.workers)])
    model, dictionary = (folder / "vocabulary" / name for name in ("sentencepiece.bpe.model", "dict.txt"))
    ours, theirs = [], []
    for number in range(arguments.repeats):
        theirs.append(by_fairseq(text, model, dictionary, folder / "by_fairseq", arguments.workers))
        ours.append(by_maelm(text, valid, model, folder / "by_maelm", arguments.workers))
        print(f"run {number + 1}: fairseq {theirs[-1]['wall']:.1f} s, maelm {ours[-1]['wall']:.1f} s", flush=True)
    equal = sha256_of(folder / "by_maelm" / "train.bin") == sha256_of(folder / "by_fairseq" / "train.bin")
    if not equal:
        raise SystemExit("the two ways gave different train.bin")
    manifest = json.loads((folder / "by_maelm" / "manifest.json").read_text())
    result: dict[str, Any] = {"text_bytes": size, "tokens": manifest["counts"]["train"]["tokens"], "equal_bin": equal}
    result["maelm_with_vocabulary_training_seconds"] = round(trained["wall"], 1)
    result["maelm_steps_of_last_run_seconds"] = manifest["seconds"]
    for name, times in (("spm_encode_and_fairseq_preprocess", theirs), ("maelm_prepare", ours)):
        wall = statistics.median(time["wall"] for time in times)
        result[name] = {
            "wall_seconds": [round(time["wall"], 1) for time in times],
            "processor_seconds": [round(time["processor"], 1) for time in times],
            "median_megabytes_per_second": round(size / 1e6 / wall, 2),
        }
    for clock in ("wall", "processor"):
        ratio = statistics.median(time[clock] for time in theirs) / statistics.median(time[clock] for time in ours)
        result[f"times_faster_by_{clock}_time"] = round(ratio, 2)
    return result


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text", required=True, type=Path, help="real text, or a folder of it, of at least --megabytes"
    )
    parser.add_argument("--output", required=True, type=Path, help="the result, as JSON")
    parser.add_argument("--megabytes", type=float, default=100, help="10^6 bytes of text to take (100)")
    parser.add_argument("--vocabulary-size", type=int, default=32_766, help="pieces of the model (32,766)")
    parser.add_argument("--workers", type=int, default=2, help="processes of either way (2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of either way (3)")
    parser.add_argument("--folder", type=Path, help="where to put some GB of temporary files")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        speed = measure_speed(arguments, folder)
        peaks = measure_memory(
            arguments.text, folder, [arguments.megabytes / 10, arguments.megabytes], arguments.workers
        )
    result = {
        "speed": speed,
        "peak_memory_megabytes_by_megabytes_of_text": peaks,
        "first_step_of_the_other_way": "spm_encode" if shutil.which("spm_encode") else "Python loop over lines",
        "workers": arguments.workers,
        "vocabulary_size": arguments.vocabulary_size,
        "load_before_and_after": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("sentencepiece", "numpy", "torch", "fairseq-fixed")},
        "date": time.strftime("%Y-%m-%d"),
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
