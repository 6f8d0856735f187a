"""Runs of fairseq's commands and ours without importing torch and fairseq for each of them.

Imports take six seconds of a core, longer than many a fine-tuning on a small task. The standard library's fork server
imports the libraries once; a run is forked from it in 0.05 s and is a process of its own, with its own arguments,
environment, working folder, log and group. Only imports are shared, never anything that was computed.

A program that starts runs must not do its work while it is imported: put that behind ``if __name__ == "__main__"``.
"""

import atexit
import contextlib
import ctypes
import fcntl
import importlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# command -> the module and its function that it calls.
COMMANDS = {
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-validate": ("fairseq_cli.validate", "cli_main"),
    "maelm": ("fairseq_maelm.cli", "main"),
}


def start(words: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None = None) -> BaseProcess:
    """Start a run; keep the returned process, for the run ends with it and with the program that started it.

    Args:
        words: one of COMMANDS, a Python file after "python", or any other program, which is started as usual.
        environment: all of its variables.
        log: gets its output appended; the file is locked as long as it runs.
        folder: to run in, the current one by default.
    """
    context = multiprocessing.get_context("forkserver")
    # torch imports its compiler with the first optimizer.
    context.set_forkserver_preload(["fairseq_cli.train", "fairseq_cli.validate", "torch._dynamo"])
    # Read while the server imports: threads that spin while they wait cost half the speed beside other programs, and a
    # server that asks NVML whether there are GPUs leaves CUDA to its runs, which could not use it after a fork.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    process = context.Process(
        target=_run, args=(list(words), dict(environment), str(log.resolve()), str(folder or Path.cwd()))
    )
    with _silence():
        process.start()
    # At its end this program would wait for those that it has started.
    atexit.register(send_signal, process, signal.SIGKILL)
    return process


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop what libraries write while the server imports them."""
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
    """Send a signal to a run, if it goes on, and to all that it has started."""
    if not process.is_alive():
        return
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # it has just been forked, and has no group of its own yet
            os.kill(process.pid, number)


def _run(words: list[str], environment: dict[str, str], log: str, folder: str) -> None:
    """Turn this new process into the run."""
    os.setsid()
    _end_with_parent()
    with open(log, "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    name, *arguments = words
    if os.path.basename(name) in COMMANDS:
        sys.argv = words
        _be_new()
        module, function = COMMANDS[os.path.basename(name)]
        sys.exit(getattr(importlib.import_module(module), function)())
    if name in ("python", sys.executable) and arguments[:1] and arguments[0].endswith(".py"):
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        _be_new()
        # fairseq's commands set logging up when they are imported; ours do so again.
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")
        return
    status = subprocess.call(words)
    if status < 0:
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _end_with_parent() -> None:
    """Have the run killed when the program that started it is gone: by a thread of its own, and, if the run becomes
    another program, by the system when the server ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _be_new() -> None:
    """Drop what an interpreter that has just been started does not have."""
    import numpy
    import torch

    # fairseq imports this package by its --user-dir, and refuses one that has been imported before.
    for module in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[module]
    numpy.random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
