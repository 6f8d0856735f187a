"""Random accidents: kills, a full disk, two processes at once, a lost rank; what was tried, and what survived.

``scripts/robustness.sh`` runs it. Every trial runs a real command in a child of this process, which has all imports
done, so that accidents strike the work and not the imports. It has survived if nothing wrong gets a real name, if the
user reads one line, and if the same command then ends with the result of an undisturbed run and leaves nothing else.
"""

import argparse
import contextlib
import hashlib
import importlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from fairseq_maelm import register
from fairseq_maelm.cli import SUB_COMMANDS, module_of
from robustness.child import Child, Ended
from robustness.commands import GOOD
from robustness.world import World

_TRAINING = (
    "pretrain {data} --output {new} --recipe tiny --gpus 0 --set batch-sequences=4 sequence-length=32 "
    "sequences-per-gpu=4 max-update=8 -- --save-interval-updates 2 --disable-validation"
)
COMMANDS = {
    name: GOOD[name]
    for name in (
        *("prepare corpus", "prepare sentences", "prepare glue", "prepare tagging", "prepare squad"),
        *("score", "export", "import", "analyze", "finetune"),
    )
} | {
    "predict": GOOD["predict"] + " --output {new}",
    "evaluate squad": GOOD["evaluate squad"] + " --output {new}",
    "pretrain": _TRAINING,
}
TRAINING = ("pretrain", "finetune")
# Those that write one file; a second run of the same refuses it.
_OF_A_FILE = ("predict", "evaluate squad")


def fingerprint(path: Path) -> dict[str, str]:
    """Sums of all files of a result; of checkpoints those of the weights."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return {str(file.relative_to(path)): _sum(file) for file in files if file.exists()}


def _sum(file: Path) -> str:
    if file.suffix == ".json":
        without_seconds = re.sub(rb'"(?:processor_)?seconds": ({[^}]*}|[^,}]*)', b"", file.read_bytes())
        return hashlib.sha256(without_seconds).hexdigest()
    if file.suffix != ".pt":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    weights = torch.load(file, weights_only=True)["model"]
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def may_mount() -> bool:
    """Whether this process may mount disks: as scripts/robustness.sh starts it, where the system lets it."""
    return os.geteuid() == 0


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[Callable[[], object]]:
    """Mount a disk of a size in bytes on a folder; yields a function that makes it large."""
    mount = ["mount", "-t", "tmpfs", "none", str(folder), "-o"]
    subprocess.run([*mount, f"size={size}"], check=True)
    try:
        yield lambda: subprocess.run([*mount, "remount,size=4g"], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Trials:
    """The accidents that are tried, and their count."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.new = world.folder / "out" / "new"
        self.remove_new()
        self.counts: dict[tuple[str, bool], list[int]] = {}
        self.wrong: list[str] = []
        self.seconds: dict[str, float] = {}
        self.names: dict[str, set[str]] = {}
        self.bytes: dict[str, int] = {}
        self.expected = {name: self._undisturbed(name) for name in COMMANDS}

    def words(self, command: str) -> list[str]:
        """The words of a command; ``new`` is a folder's or file's name that is free."""
        return self.world.words(COMMANDS[command].replace("{new}", str(self.new)))

    def remove_new(self) -> None:
        """Remove what commands wrote, and make the folder again."""
        shutil.rmtree(self.new.parent, ignore_errors=True)
        self.new.parent.mkdir()

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
            self.bytes[command] = sum(path.stat().st_size for path in [self.new, *self.new.rglob("*")])
            self.remove_new()
        self.names[command] = {*results[0], *results[1]}
        return {name: value for name, value in results[0].items() if results[1].get(name) == value}

    def again(self, command: str) -> str:
        """Run a command undisturbed after an accident; return what is wrong with its end."""
        ended = Child(self.words(command)).wait()
        # A file that is there already, whole, is refused; folders made from the same are found.
        if ended.status != 0 and not (ended.told and "exists already" in ended.output):
            return f"the next run ended with {ended.status}: {ended.output[-300:]}"
        found = fingerprint(self.new)
        other = sorted(name for name, value in self.expected[command].items() if found.get(name) != value)
        left = sorted({*found} - self.names[command]) + sorted({*os.listdir(self.new.parent)} - {"new"})
        return f"another result: {other[:3]}" if other else f"left {left[:3]}" if left else ""

    def _after_failure(self, command: str, ended: Ended) -> str:
        """What is wrong with how a command ended that may fail: more than one line, or a part under a real name."""
        if ended.status != 0 and not ended.told:
            return f"ended with {ended.status}: {ended.output[-300:]}"
        found = fingerprint(self.new)
        is_whole = self.expected[command].items() <= found.items()
        may_be_partial = command in (*TRAINING, "analyze", "prepare glue")
        return "" if is_whole or not (found or self.new.exists()) or may_be_partial else "a part has the result's name"

    def kill(self, command: str) -> str:
        """Kill a command at a random moment."""
        child = Child(self.words(command))
        time.sleep(self.random.uniform(0, 1.1 * self.seconds[command]))
        child.kill()
        ended = child.wait()
        status = 0 if ended.status == -signal.SIGKILL else ended.status
        return self._after_failure(command, Ended(status, ended.output)) or self.again(command)

    def full_disk(self, command: str) -> str:
        """Write to a disk that is too small, or just not; then make it larger."""
        size = int(self.random.uniform(0.01, 1.3) * self.bytes[command]) + 4096
        with disk(self.new.parent, size) as enlarge:
            wrong = self._after_failure(command, Child(self.words(command)).wait())
            enlarge()
            wrong = wrong or self.again(command)
        return wrong and f"{size} bytes: {wrong}"

    def two_processes(self, command: str) -> str:
        """Start a command twice at once."""
        children = [Child(self.words(command)) for _ in range(2)]
        ended = [child.wait() for child in children]
        bad = [each for each in ended if each.status != 0 and not each.told]
        if bad or all(each.status for each in ended):
            return f"ended with {[each.status for each in ended]}: {(bad or ended)[0].output[-300:]}"
        return self.again(command)

    def lost_rank(self, command: str) -> str:
        """Kill one of two ranks at a random moment: the other ends too, and both go on from there."""
        lost, words = self.random.randrange(2), self._words_of_ranks()
        ranks = [Child(each) for each in words]
        time.sleep(self.random.uniform(0, 2 * self.seconds[command]))
        ranks[lost].kill()
        ranks[lost].wait()
        other = ranks[1 - lost].wait(30)
        if other.status is None and "initialized host" in other.output:
            return f"the other rank hangs: {other.output[-300:]}"
        # One that has not met the other yet waits for it, for as long as torch's timeout.
        if other.status and not other.told:
            return f"the other rank ended with {other.status}: {other.output[-300:]}"
        ended = [rank.wait() for rank in [Child(each) for each in self._words_of_ranks()]]
        if any(each.status for each in ended):
            return f"the next run ended with {[each.status for each in ended]}: {ended[0].output[-300:]}"
        updates = torch.load(self.new / "checkpoint_last.pt", weights_only=True)["optimizer_history"][-1]["num_updates"]
        return "" if updates == 8 else f"the next run ended after {updates} updates"

    def _words_of_ranks(self) -> list[list[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = ["--distributed-no-spawn", "--distributed-backend", "gloo"]
        shared += ["--distributed-init-method", f"tcp://127.0.0.1:{port}", "--ddp-backend", "legacy_ddp"]
        words = self.words("pretrain")
        words.insert(words.index("--"), "distributed-world-size=2")
        return [[*words, *shared, "--distributed-rank", str(rank)] for rank in range(2)]

    def run(self, number: int) -> None:
        """Try accidents in turn, each with a random command."""
        kinds: list[tuple[str, Callable[[str], str], Sequence[str]]] = [
            ("killed at a random moment", self.kill, list(COMMANDS)),
            ("the disk is full", self.full_disk, list(COMMANDS)),
            ("two processes at once", self.two_processes, [name for name in COMMANDS if name not in _OF_A_FILE]),
            ("one rank of two killed", self.lost_rank, ["pretrain"]),
        ]
        weights = [6, 4 * may_mount(), 2, 1]
        for trial in range(number):
            name, accident, commands = self.random.choices(kinds, weights)[0]
            command = self.random.choice(list(commands))
            wrong = accident(command)
            count = self.counts.setdefault((name, command in TRAINING), [0, 0])
            count[0] += 1
            count[1] += not wrong
            if wrong:
                self.wrong.append(f"{name}, {command}: {wrong}")
                sys.stderr.write(f"{self.wrong[-1]}\n")
            self.remove_new()
            sys.stderr.write(f"{trial + 1} of {number} trials, {len(self.wrong)} not survived\n")

    def table(self) -> str:
        """The counts as a table for the documentation."""
        names = {True: "pretrain, finetune", False: "all others that write"}
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
    for name in SUB_COMMANDS:
        importlib.import_module(module_of(name))
    importlib.import_module("fairseq_cli.train")


if __name__ == "__main__":
    main()
