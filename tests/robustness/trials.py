"""Random accidents: kills, rot, a full disk, two processes at once, a lost rank; what was tried, and what survived.

``scripts/robustness.sh`` runs it. Every trial runs a real command in a child of this process, which has all imports
done, so that accidents strike the work and not the imports. It has survived if nothing wrong gets a real name, if the
user reads one line, and if the same command then ends with the result of an undisturbed run and leaves nothing else.
"""

import argparse
import hashlib
import importlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from pathlib import Path
from typing import NamedTuple

import torch
from tabulate import tabulate

from fairseq_maelm import cli, register
from fairseq_maelm.cli import SUB_COMMANDS
from robustness.cases import GOOD
from robustness.world import World

_TRAINING = (
    "pretrain {data} --output {new} --recipe tiny --gpus 0 --set batch-sequences=4 sequence-length=32 "
    "sequences-per-gpu=4 -- --max-update 8 --save-interval-updates 2 --disable-validation"
)
COMMANDS = {
    name: GOOD[name]
    for name in (
        *("prepare corpus", "prepare sentences", "prepare tagging", "prepare squad", "prepare retrieval"),
        *("embed", "search", "export", "import", "analyze", "finetune"),
    )
} | {
    "predict": GOOD["predict"] + " --output {new}",
    "evaluate squad": GOOD["evaluate squad"] + " --output {new}",
    "pretrain": _TRAINING,
}
_PREPARED = {
    "prepare sentences": "sentences", "prepare tagging": "tagging", "prepare squad": "squad", "embed": "embeddings",
}  # fmt: skip
_LONGEST_SECONDS = 120


class Ended(NamedTuple):
    """How a command ended: its status, negative for a signal, None for one that hung; and what it wrote."""

    status: int | None
    output: str

    @property
    def told(self) -> bool:
        """Whether it failed with one line and no traceback."""
        line = re.search(r"^(maelm [a-z ]+|fairseq-train): error: .+$", self.output, re.MULTILINE)
        return self.status in (1, 2) and line is not None and "Traceback" not in self.output


class Child:
    """A command in a child process."""

    def __init__(self, words: Sequence[str], file_limit: int | None = None) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            self._become(words, writing, file_limit)
        os.close(writing)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def _become(self, words: Sequence[str], writing: int, file_limit: int | None) -> None:
        status = 1
        try:
            os.setsid()
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            if file_limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            cli.main(list(words))
            status = 0
        except SystemExit as exit:
            status = exit.code if isinstance(exit.code, int) else 1
            if isinstance(exit.code, str):
                sys.stderr.write(f"{exit.code}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # As the interpreter would at its end: locks are given back.
            util._exit_function()
            os._exit(status)

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb") as stream:
            while part := stream.read1(2**16):
                self._parts.append(part)

    def kill(self) -> None:
        """Kill it and its children."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def wait(self, seconds: float = _LONGEST_SECONDS) -> Ended:
        """Wait until it ends; kill it when it takes longer."""
        end, status = time.monotonic() + seconds, None
        while status is None and time.monotonic() < end:
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
            time.sleep(0.005)
        self.kill()
        if status is None:
            os.waitpid(self.pid, 0)
        self._reader.join(10)
        return Ended(status, b"".join(self._parts).decode("utf-8", "replace"))


def fingerprint(path: Path) -> dict[str, str]:
    """Sums of all files of a result; of checkpoints those of the weights."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return {str(file.relative_to(path)): _sum(file) for file in files if file.exists()}


def _sum(file: Path) -> str:
    if file.suffix != ".pt":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    weights = torch.load(file, weights_only=True)["model"]
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


class Trials:
    """The accidents that are tried, and their count."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.counts: dict[tuple[str, str], list[int]] = {}
        self.wrong: list[str] = []
        self.seconds: dict[str, float] = {}
        self.expected = {name: self._undisturbed(name) for name in COMMANDS}

    def words(self, command: str) -> list[str]:
        """The words of a command; ``new`` is a folder's or file's name that is free."""
        return self.world.words(COMMANDS[command])

    @property
    def new(self) -> Path:
        """What commands write."""
        return self.world.folder / "new"

    def _undisturbed(self, command: str) -> dict[str, str]:
        """Fingerprint the result; what differs from one time to the next, such as times, is left out."""
        results = []
        for _ in range(2):
            begun = time.monotonic()
            ended = Child(self.words(command)).wait()
            self.seconds[command] = time.monotonic() - begun
            if ended.status != 0:
                raise SystemExit(f"{command} fails undisturbed:\n{ended.output[-2000:]}")
            results.append(fingerprint(self.new))
            self.world.remove_new()
        return {name: value for name, value in results[0].items() if results[1].get(name) == value}

    def again(self, command: str) -> str:
        """Run a command undisturbed after an accident; return what is wrong with its end."""
        ended = Child(self.words(command)).wait()
        # A file that is there already, whole, is refused; folders made from the same are found.
        if ended.status != 0 and not (ended.told and "exists already" in ended.output):
            return f"the next run ended with {ended.status}: {ended.output[-300:]}"
        found = fingerprint(self.new)
        other = sorted(name for name, value in self.expected[command].items() if found.get(name) != value)
        beside = sorted(path.name for path in self.world.folder.glob("*new?*"))
        inside = [name for name in found if name.endswith((".partial", ".tmp"))]
        return f"another result: {other[:3]}" if other else f"left {beside + inside}" if beside + inside else ""

    def kill(self, command: str) -> str:
        """Kill a command at a random moment."""
        child = Child(self.words(command))
        time.sleep(self.random.uniform(0, 1.1 * self.seconds[command]))
        child.kill()
        ended = child.wait()
        whole = self.new.exists() and command not in ("pretrain", "finetune", "analyze")
        if whole and not self.expected[command].items() <= fingerprint(self.new).items():
            return "a part of the result has its name"
        return self.again(command) if ended.status in (0, -signal.SIGKILL) else f"ended with {ended.status}"

    def full_disk(self, command: str) -> str:
        """Let no file grow beyond a random size."""
        limit = 2 ** self.random.randint(6, 16)
        ended = Child(self.words(command), file_limit=limit).wait()
        if ended.status != 0 and not ended.told:
            return f"{limit} bytes: ended with {ended.status}: {ended.output[-300:]}"
        return self.again(command)

    def two_processes(self, command: str) -> str:
        """Start a command twice at once."""
        children = [Child(self.words(command)) for _ in range(2)]
        ended = [child.wait() for child in children]
        bad = [each for each in ended if each.status != 0 and not each.told]
        if bad or all(each.status for each in ended):
            return f"ended with {[each.status for each in ended]}: {(bad or ended)[0].output[-300:]}"
        return self.again(command)

    def rot(self, command: str) -> str:
        """Change a byte of a prepared folder, or cut a file: the command that made it must say so."""
        folder = self.world.folder / _PREPARED[command]
        files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
        file = self.random.choice(list(files))
        content, state = file.read_bytes(), file.stat()
        place = self._damage(file, content)
        line = {
            "prepare sentences": "--vocabulary {data} --train {sentences.tsv} --valid {sentences.tsv}",
            "prepare tagging": "--vocabulary {data} --train {words.conll} --valid {words.conll}",
            "prepare squad": "--vocabulary {data} --train {squad.json} --valid {squad.json}",
            "embed": "{text.txt} --checkpoint {pretrained} --vocabulary {data}",
        }[command]
        try:
            ended = Child(self.world.words(f"{command} {line} --output {{{_PREPARED[command]}}}")).wait()
            # The manifest says nothing of itself: what it holds that does not matter may change.
            harmless = ended.status == 0 and file.name == "manifest.json"
            return "" if ended.told or harmless else f"{file.name} at {place}: {ended.status}: {ended.output[-300:]}"
        finally:
            file.write_bytes(content)
            os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))

    def _damage(self, file: Path, content: bytes) -> int:
        """Change a byte of a file at a random place, or cut it there."""
        place = self.random.randrange(len(content))
        rest = b"" if self.random.random() < 0.3 else bytes([content[place] ^ 1]) + content[place + 1 :]
        file.write_bytes(content[:place] + rest)
        return place

    def rotten_checkpoint(self, command: str) -> str:
        """Change a byte of a checkpoint, or cut it: whoever reads it must say so."""
        file = self.world.path("pretrained")
        content = file.read_bytes()
        place = self._damage(file, content)
        try:
            ended = Child(self.words(command)).wait()
            if ended.status == 0:
                same = self.expected[command].items() <= fingerprint(self.new).items()
                return "" if same else f"byte {place} changed the result in silence"
            return "" if ended.told else f"byte {place}: ended with {ended.status}: {ended.output[-300:]}"
        finally:
            file.write_bytes(content)

    def lost_rank(self, command: str) -> str:
        """Kill one of two ranks at a random moment: the other ends too, and both go on from there."""
        killed = self.random.randrange(2)
        ranks = self._ranks()
        time.sleep(self.random.uniform(0, 2 * self.seconds[command]))
        ranks[killed].kill()
        other = ranks[1 - killed].wait(90)
        ranks[killed].wait()
        if other.status is None:
            return "the other rank hangs"
        ended = [rank.wait() for rank in self._ranks()]
        if any(each.status for each in ended):
            return f"the next run ended with {[each.status for each in ended]}: {ended[0].output[-300:]}"
        updates = torch.load(self.new / "checkpoint_last.pt", weights_only=True)["optimizer_history"][-1]["num_updates"]
        return "" if updates == 8 else f"the next run ended after {updates} updates"

    def _ranks(self) -> list[Child]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-backend", "gloo"]
        shared += ["--distributed-init-method", f"tcp://127.0.0.1:{port}", "--ddp-backend", "legacy_ddp"]
        return [Child([*self.words("pretrain"), *shared, "--distributed-rank", str(rank)]) for rank in range(2)]

    def run(self, number: int) -> None:
        """Try accidents in turn, each with a random command."""
        kinds: list[tuple[str, Callable[[str], str], Sequence[str]]] = [
            ("killed at a random moment", self.kill, list(COMMANDS)),
            ("the disk is full", self.full_disk, [name for name in COMMANDS if name != "pretrain"]),
            ("two processes at once", self.two_processes, [name for name in COMMANDS if name != "evaluate squad"]),
            ("a byte of prepared data changed, or cut", self.rot, list(_PREPARED)),
            ("a byte of a checkpoint changed, or cut", self.rotten_checkpoint, ["embed", "export", "finetune"]),
            ("one rank of two killed", self.lost_rank, ["pretrain"]),
        ]
        weights = [5, 3, 2, 2, 2, 1]
        for trial in range(number):
            name, accident, commands = self.random.choices(kinds, weights)[0]
            command = self.random.choice(list(commands))
            wrong = accident(command)
            count = self.counts.setdefault(
                (name, "training" if command in ("pretrain", "finetune") else "other"), [0, 0]
            )
            count[0] += 1
            count[1] += not wrong
            if wrong:
                self.wrong.append(f"{name}, {command}: {wrong}")
                sys.stderr.write(f"{self.wrong[-1]}\n")
            self.world.remove_new()
            sys.stderr.write(f"{trial + 1} of {number} trials, {len(self.wrong)} not survived\n")

    def table(self) -> str:
        """The counts as a table for the documentation."""
        names = {"training": "pretrain, finetune", "other": "all other commands that write"}
        rows = [[kind, names[group], *count] for (kind, group), count in sorted(self.counts.items())]
        return tabulate(rows, ["accident", "commands", "tried", "survived"], "github")


def main() -> None:
    """Run the trials and write the table to standard output; exit with status 1 if one was not survived."""
    parser = argparse.ArgumentParser(description="Tries random accidents with the commands that write.")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="number of accidents")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed of accidents and moments")
    args = parser.parse_args()
    _import_everything()
    folder = Path(tempfile.mkdtemp(prefix="robustness"))
    try:
        trials = Trials(World(folder), args.seed)
        trials.run(args.trials)
        sys.stdout.write(f"{trials.table()}\n")
        raise SystemExit(bool(trials.wrong))
    finally:
        shutil.rmtree(folder)


def _import_everything() -> None:
    register()
    torch.set_num_threads(1)
    for module, _ in SUB_COMMANDS.values():
        importlib.import_module(module)
    importlib.import_module("fairseq_cli.train")


if __name__ == "__main__":
    main()
