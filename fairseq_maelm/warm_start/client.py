"""Stands for a run that a warm server makes: passes its output and signals through and ends as it ends.

    python -I -S client.py SOCKET PROGRAM ARGUMENT...

PROGRAM is a path; its last part is the name of the command. If there is no server at SOCKET, or it cannot make this
run, PROGRAM itself is started in this process.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# Started by its path, without site-packages: the package around it would import torch.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from protocol import PASSED_ON, STATUS, receive_exactly, send_request


def ask(address: str, program: str, arguments: list[str]) -> int | None:
    """Have a program run.

    Returns:
        its exit status, negative for a signal; None if it has to be started in the usual way.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError:
        return None

    def pass_on(number: int, frame: Any) -> None:
        connection.sendall(bytes([number]))

    handlers = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    request = {
        "command": os.path.basename(program),
        "arguments": [program, *arguments],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    send_request(connection, request, [0, 1, 2])
    accepted = receive_exactly(connection, 1)
    if accepted == b"y":
        answer = receive_exactly(connection, STATUS.size)
        # A server that was killed has taken its runs with it.
        return STATUS.unpack(answer)[0] if len(answer) == STATUS.size else -signal.SIGKILL
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return None


def main(words: list[str]) -> None:
    """Run and exit with the run's status; a run that died of a signal makes this process die of it too."""
    address, program, *arguments = words
    status = ask(address, program, arguments)
    if status is None:
        os.execv(sys.executable, [sys.executable, program, *arguments])
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
