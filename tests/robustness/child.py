"""Commands in children of this process, which has all imports done, so that accidents strike the work alone."""

import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm import cli

_LONGEST_SECONDS = 120
# Models of the tests take a few MB, libraries some 100.
_MEMORY = 1500 * 2**20


class Ended(NamedTuple):
    """How a command ended: its status, negative for a signal, None for one that hung; and what it wrote."""

    status: int | None
    output: str

    @property
    def told(self) -> bool:
        """Whether it failed with one line and no traceback."""
        line = re.search(r"^(maelm [a-z ]+|fairseq-train): error: .+$", self.output, re.MULTILINE)
        return self.status in (1, 2) and line is not None and "Traceback" not in self.output


def limit_memory() -> tuple[int, int]:
    """Let this process use 1.5 GB beyond what it uses; return its limits before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, before[1]))
    return before


class Child:
    """A command in a child process, which may have to do with little memory."""

    def __init__(self, words: Sequence[str], little_memory: bool = False) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            self._become(words, writing, little_memory)
        os.close(writing)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def _become(self, words: Sequence[str], writing: int, little_memory: bool) -> None:
        status = 1
        try:
            os.setsid()
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            if little_memory:
                limit_memory()
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            cli.main(list(words))
            status = 0
        except SystemExit as exit:
            status = exit.code if isinstance(exit.code, int) else 1
            if isinstance(exit.code, str):
                sys.stderr.write(f"{exit.code}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # As the interpreter would at its end: locks are given back.
            util._exit_function()
            os._exit(status)

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb") as stream:
            while part := stream.read1(2**16):
                self._parts.append(part)

    def kill(self) -> None:
        """Kill it and its children."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def wait(self, seconds: float = _LONGEST_SECONDS) -> Ended:
        """Wait until it ends; kill it when it takes longer."""
        end, status = time.monotonic() + seconds, None
        while status is None and time.monotonic() < end:
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
            time.sleep(0.005)
        self.kill()
        if status is None:
            os.waitpid(self.pid, 0)
        self._reader.join(10)
        return Ended(status, b"".join(self._parts).decode("utf-8", "replace"))
