"""Starting a warm server, and the commands that use it."""

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_maelm.warm_start.protocol import COMMANDS, PYTHON

_HERE = Path(__file__).resolve().parent


def can_be_warm(words: Sequence[str]) -> bool:
    """Whether a warm server can make the run of a command."""
    return words[0] == PYTHON or Path(words[0]).name in COMMANDS


def is_worth_a_server(words: Sequence[str]) -> bool:
    """Whether a command always imports what a server holds, or is a shell script, which may contain such a one."""
    return Path(words[0]).name in ("fairseq-train", "fairseq-validate", "bash", "sh")


@dataclass(frozen=True)
class WarmStart:
    """A server that makes runs.

    Attributes:
        address: of its socket.
        programs: folder of the commands, for runs that the server cannot make.
        stand_ins: folder of scripts that are named as the commands, and as ``python``, and let the server make their
            runs; put first in PATH, they serve shell scripts and whatever else starts the commands by their names.
    """

    address: Path
    programs: Path
    stand_ins: Path

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command through the server; one that it does not know is returned as it is."""
        if not can_be_warm(words):
            return list(words)
        name, *arguments = words
        return [*_client(self.address, self.programs / name), *arguments]


def _client(address: Path, program: Path) -> list[str]:
    path = sys.executable if program.name == PYTHON else str(program)
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(address), path]


def _write_stand_ins(folder: Path, address: Path, programs: Path) -> None:
    folder.mkdir()
    for name in (PYTHON, *(name for name in COMMANDS if (programs / name).exists())):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(_client(address, programs / name))} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


@contextlib.contextmanager
def warm_start(environment: Mapping[str, str]) -> Iterator[WarmStart]:
    """A server for the time of a ``with``; runs that have not ended then are killed.

    Commands may be given at once; they wait until the libraries are imported.

    Args:
        environment: of the server. Variables that libraries read while they are imported, such as OMP_NUM_THREADS,
            must be those of the runs; runs with others start in the usual way.
    """
    with tempfile.TemporaryDirectory(prefix="maelm") as folder:
        address, stand_ins, programs = Path(folder) / "socket", Path(folder) / "bin", Path(sys.executable).parent
        _write_stand_ins(stand_ins, address, programs)
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "server.py"), str(address)],
            stdin=subprocess.PIPE,
            # What libraries say while they are imported is no run's output.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            while not address.exists() and server.poll() is None:
                time.sleep(0.01)
            yield WarmStart(address, programs, stand_ins)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
