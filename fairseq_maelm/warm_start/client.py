"""Stands for a run that a warm server makes: passes its output and signals through and ends as it ends.

    python -I -S client.py SOCKET PROGRAM ARGUMENT...

PROGRAM is a path; its last part is the name of the command. This interpreter's own path stands for the command
"python", whose first argument is then the file to run. If there is no server at SOCKET, or it cannot make this run,
PROGRAM itself is started in this process.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# Started by its path, without site-packages: the package around it would import torch.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from protocol import PASSED_ON, PYTHON, STATUS, receive_exactly, send_request


def name_and_words(program: str, arguments: list[str]) -> tuple[str, list[str]]:
    """The command's name, and what its ``sys.argv`` is to be."""
    if program == sys.executable:
        # Options of the interpreter, modules and code from elsewhere need an interpreter of their own.
        script = arguments[:1] and arguments[0].endswith(".py") and os.path.isfile(arguments[0])
        return PYTHON if script else "", arguments
    return os.path.basename(program), [program, *arguments]


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
    command, words = name_and_words(program, arguments)
    request = {
        "command": command,
        "arguments": words,
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
        script = [] if program == sys.executable else [program]
        os.execv(sys.executable, [sys.executable, *script, *arguments])
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
