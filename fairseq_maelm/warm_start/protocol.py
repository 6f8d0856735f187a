"""What client and server of a warm start have in common; standard library alone."""

import json
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any

# command -> the module and its function that it calls.
COMMANDS = {
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-validate": ("fairseq_cli.validate", "cli_main"),
    "maelm": ("fairseq_maelm.cli", "main"),
}
# Runs a file; without one, as in `python -m` or `python -`, it starts in the usual way.
PYTHON = "python"

# Signals that a client passes on to its run.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

STATUS = struct.Struct("!i")
_LENGTH = struct.Struct("!I")

# Variables with these beginnings are read while libraries are imported: a run with others needs imports of its own.
# Not KMP_: scikit-learn sets some of them in every process that imports it.
_READ_AT_IMPORT = ("OMP_", "GOMP_", "MKL_", "OPENBLAS_", "PYTHON", "LD_", "LOGLEVEL")


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be the server's own."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}


def send_request(connection: socket.socket, request: Mapping[str, Any], descriptors: list[int]) -> None:
    """Send what to run, with the descriptors of its standard input, output and error."""
    message = json.dumps(request).encode("utf-8", "surrogateescape")
    socket.send_fds(connection, [_LENGTH.pack(len(message))], descriptors)
    connection.sendall(message)


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The other end of ``send_request``.

    Raises:
        ConnectionError: if the other side hung up before the end.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    message = receive_exactly(connection, _LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not message:
        raise ConnectionError("the client hung up")
    return json.loads(message.decode("utf-8", "surrogateescape")), list(descriptors)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Bytes of a known number; fewer only if the other side hung up."""
    received = b""
    while len(received) < size and (part := connection.recv(size - len(received))):
        received += part
    return received
