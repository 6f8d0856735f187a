"""Workers, from the benchmark's side: processes that take commands, one worker at a time."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from training_step.settings import Settings

BENCHMARKS = Path(__file__).resolve().parents[1]


class WorkerError(RuntimeError):
    """A worker that failed, or does not answer; the text says why."""


class Worker:
    """The process of a contender or, if None, of the bare matrix products.

    ``order`` has what it needs besides the settings: "data", "code" and "extra", or "iterations". A command may take
    ``timeout`` seconds.
    """

    def __init__(self, contender: str | None, settings: Settings, order: dict[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self.log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        whole = {"contender": contender, "settings": settings.as_dict(), **order}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "training_step.worker", json.dumps(whole)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment(settings),
            cwd=BENCHMARKS,
        )
        self._received = b""

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its result; errors as ``receive``."""
        self.send(command, **arguments)
        return self.receive()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command; raise a WorkerError if the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps({"command": command, **arguments}) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._ended()) from None

    def receive(self) -> Any:
        """Wait for the result of the command sent before.

        A WorkerError says that it failed, or that the process has ended or takes too long and is then ended.
        """
        answer = json.loads(self._line())
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["result"]

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self._received:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.process.kill()
                raise WorkerError(f"no answer within {self.timeout:g} s")
            received = os.read(descriptor, 65536)
            if not received:
                raise WorkerError(self._ended())
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ended(self) -> str:
        status = self.process.wait()
        reason = f"ended by signal {-status}, perhaps for lack of memory" if status < 0 else f"exit status {status}"
        lines = [line for line in self.log_text().splitlines() if line.strip()]
        return f"the process stopped ({reason})" + (f": {lines[-1][:300]}" if lines else "")

    def log_text(self) -> str:
        """Return what the process wrote besides its answers."""
        self.log.seek(0)
        return self.log.read()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        # Without input it ends by itself, and with it the processes of its data loader; unless it is stuck.
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


def environment(settings: Settings) -> dict[str, str]:
    """Return a worker's environment: this checkout's package and benchmarks, one GPU, a number of threads."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Workers run in another folder.
    paths = [str(path) for path in (BENCHMARKS, BENCHMARKS.parent, *(Path(each).resolve() for each in given))]
    threads = str(settings.threads)
    return {
        "CUDA_VISIBLE_DEVICES": "0",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
