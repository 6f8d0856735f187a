"""Start fairseq's commands and ours without importing torch and fairseq each time.

The imports take six seconds on one core, longer than most of the tests' runs. The standard library's fork server
imports the libraries once. Each run is forked from it in 0.05 s, as a separate process with its own arguments,
environment, working folder, log and process group. Only imports are shared.
"""

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Command -> its module and function.
COMMANDS = {
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-validate": ("fairseq_cli.validate", "cli_main"),
    "maelm": ("fairseq_maelm.cli", "main"),
}


def start(words: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None = None) -> BaseProcess:
    """Start a run; it is killed if the calling program ends.

    Args:
        words: command line. One of COMMANDS runs in a fork of the server; any other program is started as usual.
        environment: all environment variables.
        log: file to which the output is appended.
        folder: working folder, by default the current one.
    """
    context = multiprocessing.get_context("forkserver")
    # torch imports its compiler with the first optimizer.
    context.set_forkserver_preload(["fairseq_cli.train", "fairseq_cli.validate", "torch._dynamo"])
    # The server reads these while it imports. Waiting threads that spin halve the speed when other programs run. If the
    # server looked for GPUs by CUDA instead of NVML, its forks could not use CUDA.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    process = context.Process(
        target=_run, args=(list(words), dict(environment), str(log.resolve()), str(folder or Path.cwd()))
    )
    with _silence():
        process.start()
    # Otherwise multiprocessing would wait for the runs when this program ends.
    atexit.register(send_signal, process, signal.SIGKILL)
    return process


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard what libraries write while the server imports them."""
    sys.stdout.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with open(os.devnull, "wb") as nowhere:
        for descriptor in kept:
            os.dup2(nowhere.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, saved in kept.items():
            os.dup2(saved, descriptor)
            os.close(saved)


def send_signal(process: BaseProcess, number: int) -> None:
    """Send a signal to a run that has not ended, and to all processes that it has started."""
    if not process.is_alive():
        return
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # the new process has not created its process group yet
            os.kill(process.pid, number)


def _run(words: list[str], environment: dict[str, str], log: str, folder: str) -> None:
    """Run the command in this new process."""
    os.setsid()
    _end_with_parent()
    with open(log, "ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    name = os.path.basename(words[0])
    if name in COMMANDS:
        sys.argv = words
        _be_new()
        module, function = COMMANDS[name]
        sys.exit(getattr(importlib.import_module(module), function)())
    status = subprocess.call(words)
    if status < 0:
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _end_with_parent() -> None:
    """Kill this run's process group when the program that started it ends.

    On Linux, this process is also killed when the fork server ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _be_new() -> None:
    """Make this process behave like a new interpreter."""
    import numpy
    import torch

    # Otherwise the run would start DataLoader workers from another fork server, which imports torch in each epoch.
    multiprocessing.set_start_method(None, force=True)
    # fairseq imports this package by its --user-dir, and refuses a package that is already imported.
    for module in [name for name in sys.modules if name.partition(".")[0] == "fairseq_maelm"]:
        del sys.modules[module]
    numpy.random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
