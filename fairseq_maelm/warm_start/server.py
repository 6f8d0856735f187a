"""Imports torch and fairseq once and forks for every run that a client asks for.

    python server.py SOCKET        listens until its standard input is closed, and then ends its runs

The socket's folder must be its user's alone: whoever can connect can run the commands as this user.
"""

import contextlib
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

# Started by its path: fairseq refuses a --user-dir whose package has been imported before.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from protocol import COMMANDS, PYTHON, STATUS, read_at_import, receive_request

_PACKAGE = Path(__file__).resolve().parents[1]


class Server:
    """The runs and who waits for them.

    Args:
        address: of the socket to listen at.
    """

    def __init__(self, address: str) -> None:
        self.environment = read_at_import(os.environ)
        self.clients: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        # A run that ends writes a byte here, which ends the wait.
        self.woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        self.woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        # Ctrl-C reaches every process of a terminal; the clients say what is to become of their runs.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.wakes = wakes
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address)
        self.listener.listen(64)

    def serve(self) -> None:
        """Make runs until standard input is closed."""
        for source in (self.listener, self.woken, sys.stdin):
            self.selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is sys.stdin:
                    self._end_runs()
                    return
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is self.woken:
                    self.woken.recv(4096)
                else:
                    self._pass_on(key.data)
            self._report()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        try:
            request, descriptors = receive_request(connection)
        except ConnectionError:
            connection.close()
            return
        known = request["command"] in (*COMMANDS, PYTHON)
        known = known and read_at_import(request["environment"]) == self.environment
        connection.sendall(b"y" if known else b"n")
        process = os.fork() if known else None
        if process == 0:
            self._close()
            become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if process is None:
            connection.close()
            return
        self.clients[process] = connection
        self.selector.register(connection, selectors.EVENT_READ, process)

    def _close(self) -> None:
        """Leave to the server what is the server's; called in the process of a new run."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.selector.close()
        for each in (self.listener, self.woken, self.wakes, *self.clients.values()):
            each.close()

    def _pass_on(self, process: int) -> None:
        """Signals from a client; one that has hung up was killed, and its run with it."""
        if process not in self.clients:
            return
        try:
            numbers = self.clients[process].recv(64)
        except ConnectionError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            _signal_group(process, number)
        if not numbers:
            self.selector.unregister(self.clients[process])

    def _report(self) -> None:
        """Tell clients whose runs have ended."""
        for process in list(self.clients):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            connection = self.clients.pop(process)
            if connection in self.selector.get_map():
                self.selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))
            connection.close()

    def _end_runs(self) -> None:
        for process in self.clients:
            _signal_group(process, signal.SIGKILL)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Turn this new process into the run; does not return."""
    # A group of its own, so that all its workers can be ended with it.
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    # Instead of this file's folder, which is there twice.
    sys.path[:2] = [os.path.dirname(os.path.abspath(sys.argv[0]))]
    _draw_anew()
    if request["command"] == PYTHON:
        _reset_logging()
        _run_script(os.path.abspath(sys.argv[0]))
        sys.exit()
    module, function = COMMANDS[request["command"]]
    if module.startswith(f"{_PACKAGE.name}."):
        _reset_logging()
        sys.path.insert(0, str(_PACKAGE.parent))
    sys.exit(getattr(importlib.import_module(module), function)())


def _run_script(path: str) -> None:
    """Run a file as the interpreter runs the one that it is given."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)


def _reset_logging() -> None:
    """Take fairseq's handlers away, which its commands set up when they are imported: they write to standard output."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)


def _draw_anew() -> None:
    """Runs that set no seed must not all draw the numbers of the server."""
    import numpy
    import torch

    numpy.random.seed()
    torch.seed()


def _signal_group(process: int, number: int) -> None:
    try:
        os.killpg(process, number)
    except ProcessLookupError:
        # Between fork and setsid it has no group of its own yet; and one that has ended has none any more.
        os.kill(process, number)


def main(address: str) -> None:
    """Import what the commands need, then serve those who have been waiting since."""
    server = Server(address)
    # Should an import ask whether there is a GPU, this keeps CUDA from being initialized, which a fork cannot inherit.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for module, _ in COMMANDS.values():
        # fairseq imports this package by its --user-dir, and refuses one that has been imported before.
        if not module.startswith(f"{_PACKAGE.name}."):
            importlib.import_module(module)
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1])
