"""The work of a SLURM job. It uses only the standard library, because this file is sent to the jobs as it is."""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1


def execute(words: Sequence[str], environment: Mapping[str, str], log: str, resumes: bool, heading: str) -> int:
    """Run a program, once no other program writes into its log, and return its exit status.

    Args:
        words: the command line. On Linux the program is killed when this process ends; elsewhere it may run on.
        environment: variables to add.
        log: file for the output.
        resumes: whether to keep an earlier log.
        heading: first line of the output.
    """
    with open(log, "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if not resumes:
            stream.truncate(0)
        stream.write(f"{heading}\n".encode())
        stream.flush()
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        return subprocess.call(
            list(words), stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment, "PATH": path}, preexec_fn=_end_with_parent,
        )  # fmt: skip


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
