"""Start Python programs without importing torch and fairseq each time.

The imports take six seconds on one core, longer than most of the tests' runs. A server imports the libraries once, and
forks a process for each program in 0.05 s. What starts a program sees a small process in its place, the stand-in,
which hands over its words, environment, working folder and open files, passes signals on, and ends as the program ends.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
# torch imports its compiler with the first optimizer.
_PRELOADED = ("fairseq_cli.train", "fairseq_cli.validate", "torch._dynamo")
# Command -> its module and function.
COMMANDS = {
    "fairseq-hydra-train": ("fairseq_cli.hydra_train", "cli_main"),
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-validate": ("fairseq_cli.validate", "cli_main"),
    "maelm": ("fairseq_maelm.cli", "command"),
}
_STAND_IN = """#!/bin/sh
exec '{python}' -I -S '{client}' '{address}' "$0" "$@"
"""


@functools.cache
def programs() -> Path:
    """Start the server of this process; return the folder of its stand-ins for "python" and for COMMANDS."""
    folder = Path(tempfile.mkdtemp(prefix="programs"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = folder / "socket"
    client = Path(__file__).with_name("stand_in.py")
    for name in ("python", *COMMANDS):
        (folder / name).write_text(_STAND_IN.format(python=sys.executable, client=client, address=address))
        (folder / name).chmod(0o755)
    # The server reads these while it imports. Waiting threads that spin halve the speed when other programs run. If the
    # server looked for GPUs by CUDA instead of NVML, its forks could not use CUDA.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", **os.environ}
    environment.pop("PYTHONPATH", None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        words = [sys.executable, "-u", __file__, str(listening.fileno())]
        nowhere = subprocess.DEVNULL
        server = subprocess.Popen(
            words, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment, pass_fds=[listening.fileno()]
        )
    atexit.register(server.kill)
    return folder


def _serve(listening: socket.socket) -> None:
    """Fork a process for each program that is asked for; return in that process, which has become the program's."""
    # Not this script's folder, whose modules are no program's.
    del sys.path[0]
    _end_with_parent()
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    # Forks then share these objects' memory although they collect garbage.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Fork a program's process, in which this returns; pass signals to it, and tell its exit status."""
    content, descriptors, _, _ = socket.recv_fds(connection, 2**16, 3)
    while not content.endswith(b"\n"):
        content += connection.recv(2**16)
    request = json.loads(content)
    program = os.fork()
    if not program:
        connection.close()
        return _become(request, descriptors)
    _end_with_parent()
    for descriptor in descriptors:
        os.close(descriptor)
    # In both processes, so that it is done before the first signal.
    os.setpgid(program, program)

    def pass_signals() -> None:
        while number := connection.recv(1):
            os.killpg(program, number[0])
        # The stand-in was killed.
        os.killpg(program, signal.SIGKILL)

    threading.Thread(target=pass_signals, daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(str(status).encode())
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process like a new interpreter in the place of the stand-in."""
    import numpy
    import torch

    os.setpgid(0, 0)
    _end_with_parent()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]
    # What the program starts in its turn has a stand-in too.
    sys.executable = str(Path(sys.argv[0]).with_name("python"))
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    numpy.random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _end_with_parent() -> None:
    """On Linux, kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _run() -> None:
    """Run the program that the command line names."""
    name = os.path.basename(sys.argv[0])
    if name in COMMANDS:
        module, function = COMMANDS[name]
        sys.exit(getattr(importlib.import_module(module), function)())
    del sys.argv[0]
    if sys.argv[0] == "-c":
        sys.path.insert(0, "")
        exec(sys.argv.pop(1), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _end() -> NoReturn:
    """Run the program and end as it does, but without freeing each object one by one, which takes two seconds."""
    status = 1
    try:
        _run()
        status = 0
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            status = exit.code or 0
        else:
            sys.stderr.write(f"{exit.code}\n")
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end()
