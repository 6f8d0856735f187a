"""Stand in for a program that process_server.py runs: ``python stand_in.py SOCKET PROGRAM WORDS...``."""

import json
import os
import signal
import socket
import sys

address, *words = sys.argv[1:]
if os.path.basename(words[0]) == "python" and words[1:2] != ["-c"] and words[1].startswith("-"):
    os.execv(sys.executable, [sys.executable, *words[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect(address)
request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode() + b"\n"
sent = socket.send_fds(server, [request], [0, 1, 2])
server.sendall(request[sent:])
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
status = int(server.recv(16))
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
