"""Starting a warm server, and the commands that use it."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_maelm.warm_start.protocol import COMMANDS

_HERE = Path(__file__).resolve().parent


def can_be_warm(words: Sequence[str]) -> bool:
    """Whether a warm server can make the run of a command."""
    return Path(words[0]).name in COMMANDS


@dataclass(frozen=True)
class WarmStart:
    """A server that makes runs.

    Attributes:
        address: of its socket.
        programs: folder of the commands, for runs that the server cannot make.
    """

    address: Path
    programs: Path

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command through the server; one that it does not know is returned as it is."""
        if not can_be_warm(words):
            return list(words)
        name, *arguments = words
        program = name if Path(name).is_absolute() else str(self.programs / name)
        return [sys.executable, "-I", "-S", str(_HERE / "client.py"), str(self.address), program, *arguments]


@contextlib.contextmanager
def warm_start(environment: Mapping[str, str]) -> Iterator[WarmStart]:
    """A server for the time of a ``with``; runs that have not ended then are killed.

    Commands may be given at once; they wait until the libraries are imported.

    Args:
        environment: of the server. Variables that libraries read while they are imported, such as OMP_NUM_THREADS,
            must be those of the runs; runs with others start in the usual way.
    """
    with tempfile.TemporaryDirectory(prefix="maelm") as folder:
        address = Path(folder) / "socket"
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
            yield WarmStart(address, Path(sys.executable).parent)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
