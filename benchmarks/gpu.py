"""Measure everything on one GPU, in slices of a few minutes, the first of which tests that it computes right.

    bash benchmarks/gpu.sh --text wikipedia.txt.xz --output FOLDER [--minutes 9] [SLICE ...]

A slice begins only if its own minutes are left of ``--minutes``. The same command goes on with the next one, on another
machine too if the folder was brought there (without data, runs, which are made again). Status 1: a slice failed, or
none was measured; 2: the call is wrong. FOLDER/gpu.json has all measurements, SLICE.log all output. ``--archive
PREFIX`` keeps a copy of the folder in PREFIX.00, .01, ..., parts of a tar file that are renewed every minute.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from fairseq_maelm.sweep.programs import sitting  # noqa: E402

VOCABULARY, TOY_VOCABULARY = 32_768, 1000
# Where tests are marked with gpu; others need more packages to be collected.
TESTS = (ROOT / "tests/models/test_gpu.py", ROOT / "tests/modules/attention")
# The vocabulary of the encoder.
ENCODER = ROOT / "fairseq_maelm" / "pretrained" / "maelm-english-14m-uncased"
# What is not archived, for it is made again or too large; largest part of an archive; seconds between two archives.
MADE_AGAIN, UNFINISHED = ("data", "data_encoder", "runs"), (".new", ".half")
PART, ARCHIVED_EVERY = 15 * 2**20, 60.0
SHAPES = {"base": "base", "14m": "14m", "32m": "32m", "150m": "modern"}
TOY_PRECISION = ["--precision", "fp32"]
TOY_STEP = ["--size", "tiny", "--layers", "1", "--length", "32", "--batch", "2", "--repeats", "1", "--steps", "1"]

Words = list[str]


class Slice(NamedTuple):
    """A part of the measurements."""

    minutes: float  # that it may take; if it resumes, without which it does not begin
    commands: list[Words]  # words after python3, one after the other
    needs: str = ""  # the option without which it is left out
    resumes: bool = False  # whether it goes on in the next call where its time was up
    passes: str = ""  # a pattern that its output must hold


class Plan:
    """The commands of all slices; ``options`` are of the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, options.output
        self.toy = options.device == "cpu"
        self.data = options.data or self.output / "data"

    def slices(self) -> dict[str, Slice]:
        """Return them in the order in which they matter."""
        tests = [*map(str, TESTS), *(["-k", "equals_plain and ragged"] if self.toy else [])]
        toy_attention = ["--device", "cpu", "--tiny"] if self.toy else []
        code = ["--authors-code", str(self.options.authors_code)]
        backends = "maelm,maelm+sdpa"
        plain = ["--dropout", "0", "--references", "maelm+sdpa"]
        shapes = {name: Slice(5, [self._shapes(size)], resumes=True) for name, size in SHAPES.items()}
        return {
            "tests": Slice(4, [["-m", "pytest", "-m", "gpu", *tests]], passes="[1-9][0-9]* passed"),
            **shapes,
            "kernels": Slice(5, [self._script("attention_gpu", *toy_attention, output="kernels")]),
            "attention": Slice(4, [self._step(backends, "--references", "maelm+sdpa", minutes=2)]),
            "flex": Slice(5, [self._step(f"{backends},maelm+flex", *plain, minutes=2)]),
            "step": Slice(5, [self._step("maelm,roberta,mlm", minutes=2)]),
            "memory": Slice(5, [self._step("maelm,maelm+recompute,maelm+adam", "--references", "maelm", minutes=2)]),
            "fp16": Slice(5, [self._step("maelm,mlm,roberta", precision="fp32" if self.toy else "fp16", minutes=2)]),
            "modern": Slice(6, [self._modern()]),
            "authors": Slice(5, [self._step("maelm,roberta,authors", *code, minutes=2)], "authors_code"),
            "encoder": self._encoder("maelm"),
            "twin": self._encoder("mlm"),
        }

    def prepare(self) -> Words:
        """Return the command that makes the data of the text."""
        return self._prepare(self.data, "--vocabulary-size", str(TOY_VOCABULARY if self.toy else VOCABULARY))

    def _prepare(self, output: Path, *words: str) -> Words:
        texts = [str(text) for text in self.options.text or ()]
        return ["-m", "fairseq_maelm", "prepare", "corpus", *texts, "--output", str(output), *words]

    def _shapes(self, size: str) -> Words:
        profile = str(self.output / f"profile_{size}.txt")
        own = ["--data", str(self.data), "--size", size, "--device", self.options.device, "--profile", profile]
        return self._script("shapes", *own, "--minutes", "4", *TOY_PRECISION[: 2 * self.toy], output="shapes")

    def _encoder(self, method: str) -> Slice:
        data = self.output / "data_encoder"
        own = ["--data", str(data), "--method", method, "--flops", f"{1e10 if self.toy else self.options.flops:g}"]
        own += ["--output", str(self.output / "encoder"), "--runs", str(self.output / "runs")]
        train = [str(HERE / "encoder.py"), *own, "--device", self.options.device, *TOY_PRECISION[: 2 * self.toy]]
        return Slice(4, [self._prepare(data, "--vocabulary", str(ENCODER)), train], "text", resumes=True)

    def _script(self, name: str, *words: str, output: str) -> Words:
        return [str(HERE / f"{name}.py"), *words, "--output", str(self.output / f"{output}.json")]

    def _step(self, contenders: str, *words: str, precision: str = "bf16", minutes: int) -> Words:
        own = ["--contenders", contenders, "--data", str(self.data), "--masking", "0.15", "--precision", precision]
        own += ["--device", self.options.device, "--resume", "--budget", str(minutes)]
        return self._script("pretraining", *own, *words, *(TOY_STEP if self.toy else []), output="step")

    def _modern(self) -> Words:
        contenders = "modern,modern+compile,modernbert,modernbert+compile"
        return self._step(contenders, "--size", "modern", "--dropout", "0", "--references", "modernbert", minutes=3)


def run(commands: list[Words], minutes: float, log: Path, meanwhile: Callable[[], None] = lambda: None) -> str:
    """Run commands until one fails; return "done", "failed", or "stopped" if their time is over.

    What a stopped command started ends with it. ``meanwhile`` is called now and then.
    """
    end = time.monotonic() + 60 * minutes
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with open(log, "w", encoding="utf-8") as stream:
        for words in commands:
            process = subprocess.Popen(
                ["python3", *words], stdout=stream, stderr=stream, env=environment, start_new_session=True
            )
            try:
                while process.poll() is None:
                    left = end - time.monotonic()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, min(left, ARCHIVED_EVERY)))
                    if process.poll() is None and left <= ARCHIVED_EVERY:
                        return "stopped"
                    meanwhile()
                if process.returncode:
                    return "failed"
            finally:
                _end(process)
    return "done"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, by SIGTERM and 20 seconds later by SIGKILL, with all that it started."""
    for number, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def archive(folder: Path, prefix: Path | None) -> None:
    """Pack a folder, without what is made again, into parts PREFIX.00, .01, ... of a tar file."""
    if prefix is None:
        return
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as tar:
            for path in sorted(folder.iterdir()):
                if path.name not in MADE_AGAIN:
                    tar.add(path, path.name, filter=lambda entry: None if entry.name.endswith(UNFINISHED) else entry)
        whole.seek(0)
        parts = list(iter(lambda: whole.read(PART), b""))
    for number, part in enumerate(parts):
        half = prefix.with_name(f"{prefix.name}.half")
        half.write_bytes(part)
        half.replace(prefix.with_name(f"{prefix.name}.{number:02}"))
    for path in sorted(prefix.parent.glob(f"{prefix.name}.[0-9][0-9]"))[len(parts) :]:
        path.unlink()


class Results:
    """gpu.json: how each slice ended, and what was measured; written after each."""

    def __init__(self, output: Path) -> None:
        self.output, self.path = output, output / "gpu.json"
        content = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.slices: dict[str, dict[str, Any]] = content.get("slices", {})

    def status(self, name: str) -> str:
        """Return how a slice ended, or ""."""
        return str(self.slices.get(name, {}).get("status", ""))

    def add(self, name: str, status: str, seconds: float) -> None:
        """Note how a slice ended, and collect all that is measured."""
        self.slices[name] = {"status": status, "seconds": round(seconds)}
        content: dict[str, Any] = {"slices": self.slices}
        for part in ("step", "kernels", "shapes", "encoder/maelm", "encoder/mlm"):
            path = self.output / f"{part}.json"
            if path.exists():
                content[part] = json.loads(path.read_text(encoding="utf-8"))
        half = self.path.with_suffix(".half")
        half.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        half.replace(self.path)


def measure(name: str, slice_: Slice, plan: Plan, minutes: float) -> tuple[str, str]:
    """Run a slice, for ``minutes`` if it resumes; return how it ended, and why it did not end well."""
    log, kept = plan.output / f"{name}.log", plan.options.archive
    status = run(
        slice_.commands, minutes if slice_.resumes else slice_.minutes, log, lambda: archive(plan.output, kept)
    )
    if status == "stopped" and not slice_.resumes:
        return "failed", f"it took more than {slice_.minutes:g} minutes, see {log}"
    if status == "done" and not re.search(slice_.passes, log.read_text(encoding="utf-8")):
        return "failed", f"nothing ran, see {log}"
    return status, {"failed": f"see {log}", "stopped": "goes on in the next call"}.get(status, "")


def wanted(options: argparse.Namespace, plan: Plan, results: Results) -> Iterator[tuple[str, Slice]]:
    """Yield the slices that were asked for and are not done."""
    for name, slice_ in plan.slices().items():
        if name not in (options.slices or plan.slices()) or (slice_.needs and not getattr(options, slice_.needs)):
            continue
        again = options.retry_failed or results.status(name) != "failed"
        if results.status(name) != "done" and again:
            yield name, slice_


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    texts = "about 40 MB for `maelm prepare corpus`: .txt, .txt.xz, ..."
    source.add_argument("--text", type=Path, nargs="+", metavar="FILE", help=texts)
    source.add_argument("--data", type=Path, help="folder of `maelm prepare corpus`")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for this call (9)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses at toy size (cuda)")
    parser.add_argument("--authors-code", type=Path, help="a copy of the authors' repository, for the slice authors")
    parser.add_argument("--flops", type=float, default=4e16, help="of the slices encoder and twin (4e16)")
    parser.add_argument("--archive", type=Path, metavar="PREFIX", help="of the files that get a copy of the results")
    parser.add_argument("--retry-failed", action="store_true", help="retry failed slices")
    parser.add_argument("slices", nargs="*", metavar="SLICE", help="slices to measure (all)")
    options = parser.parse_args()
    known = Plan(options).slices()
    for name in options.slices:
        if name not in known:
            parser.error(f"there is no slice {name}: choose from {', '.join(known)}")
        if known[name].needs and not getattr(options, known[name].needs):
            parser.error(f"the slice {name} needs --{known[name].needs.replace('_', '-')}")
    for path in (*(options.text or ()), options.data, options.authors_code):
        if path is not None and not path.exists():
            parser.error(f"there is no {path}")
    return options


def check_gpu(device: str) -> None:
    """Leave with status 2 where there is no GPU to measure."""
    probe = "import torch; raise SystemExit(not torch.cuda.is_available())"
    if device == "cuda" and subprocess.run(["python3", "-c", probe]).returncode:
        print("gpu.py: torch finds no GPU here; --device cpu rehearses", file=sys.stderr)
        raise SystemExit(2)


def main() -> None:
    """Measure as many slices as there is time for."""
    begin, options = time.monotonic(), arguments()
    with sitting("gpu.py"):
        raise SystemExit(measure_all(options, begin + 60 * options.minutes))


def measure_all(options: argparse.Namespace, end: float) -> int:
    """Measure what is to end before ``time.monotonic()`` says ``end``, and return the exit status."""
    check_gpu(options.device)
    if options.device == "cpu" and importlib.util.find_spec("triton"):
        os.environ["TRITON_INTERPRET"] = "1"
    options.output.mkdir(parents=True, exist_ok=True)
    plan, results = Plan(options), Results(options.output)
    reads = any(str(plan.data) in words for _, each in wanted(options, plan, results) for words in each.commands)
    if options.text and reads and not (plan.data / "train.idx").exists():
        status = run([plan.prepare()], options.minutes, options.output / "data.log")
        if status != "done":
            raise SystemExit(f"the data were not made ({status}): see {options.output / 'data.log'}")
    ended, left = [], []
    for name, slice_ in list(wanted(options, plan, results)):
        started = time.monotonic()
        if left or started + 60 * slice_.minutes > end:
            left.append(name)
            continue
        status, reason = measure(name, slice_, plan, (end - started) / 60)
        seconds = time.monotonic() - started
        ended.append(status)
        results.add(name, status, seconds)
        archive(options.output, options.archive)
        print(f"{name}: {status} after {seconds:.0f} s{f', {reason}' if reason else ''}", flush=True)
    failed = [name for name in plan.slices() if results.status(name) == "failed"]
    if left:
        print(f"left for the next call: {' '.join(left)}")
    if failed:
        print(f"failed: {' '.join(failed)}; --retry-failed tries them again")
    nothing = not ended and bool(left)
    if nothing:
        print(f"nothing was measured: --minutes {options.minutes:g} is too little")
    return int(bool(failed) or nothing)


if __name__ == "__main__":
    main()
