"""Starting a program that ends with the process that started it, even when that is killed.

Standard library only: the file is also run as a script, so that a run costs no second import of the package, and sent
to SLURM jobs as it is.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

__all__ = ["execute", "tied"]

_PR_SET_PDEATHSIG = 1


def tied(words: Sequence[str]) -> list[str]:
    """The command that runs ``words`` as a child which does not outlive this process (on Linux; elsewhere it may)."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *words]


def execute(
    script: str, words: Sequence[str], environment: Mapping[str, str], log: str, anew: bool, heading: str
) -> int:
    """Run a program into its log, alone: one that still writes there is waited for. What SLURM jobs do.

    Args:
        script: the path of this file.
        words: of the program.
        environment: variables to add.
        log: the file for its output.
        anew: whether an earlier log is overwritten.
        heading: the first line of its output.

    Returns:
        the exit status.
    """
    with open(log, "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if anew:
            stream.truncate(0)
        stream.write(f"{heading}\n".encode())
        stream.flush()
        command = [sys.executable, "-I", "-S", script, str(os.getpid()), *words]
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, **environment, "PATH": path}
        return subprocess.call(
            command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )


def _become(parent: int, words: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            raise SystemExit("the process that started this one is gone")
    os.execvp(words[0], list(words))


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
