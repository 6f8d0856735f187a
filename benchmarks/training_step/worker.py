"""One process of the benchmark: takes commands as lines of JSON on its input, and answers each with one line.

Started by ``training_step.processes``; everything that libraries print goes to standard error.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

import torch

from training_step.clocks import PeakMemory, machine
from training_step.contenders import split_name
from training_step.products import BareProducts
from training_step.session import Session, profile, run_steps
from training_step.settings import Settings


def make_session(name: str, settings: Settings, data: str, code: str | None, extra: list[str]) -> Session:
    """Return the training run of a contender, which is still to be built; see ``FairseqSession``."""
    contender, changes = split_name(name)
    if contender.kind == "huggingface":
        from training_step.huggingface_session import HuggingFaceSession

        return HuggingFaceSession(contender, settings, data, changes)
    from training_step.fairseq_session import FairseqSession

    return FairseqSession(contender, settings, data, Path(code) if code else None, extra, changes)


class TrainingWorker:
    """Answers the commands about one contender."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.settings = Settings.from_dict(order["settings"])
        self.order = order
        self.memory = PeakMemory(self.settings.device)

    def build(self) -> dict[str, Any]:
        """Make the training run."""
        order = self.order
        self.session = make_session(order["contender"], self.settings, order["data"], order["code"], order["extra"])
        return {**self.session.build(), "machine": machine()}

    def warm_up(self, count: int) -> None:
        """Take steps that nobody times: memory is found, kernels are chosen, loss scales settle."""
        for _ in range(count):
            self.session.step(self.session.take_prepared())
        self.rest()

    def steps(self, count: int, untimed: int, loaded: bool) -> dict[str, float]:
        """Take steps; see ``run_steps``."""
        seconds = run_steps(self.session, count, untimed, loaded)
        self.rest()
        return seconds

    def profile(self, count: int) -> dict[str, float]:
        """Take steps by stages; see ``training_step.session.profile``."""
        seconds = profile(self.session, count)
        self.rest()
        return seconds

    def rest(self) -> None:
        """Give memory back to the GPU, which other contenders use next."""
        if self.settings.device == "cuda":
            torch.cuda.empty_cache()

    def reset_memory(self) -> None:
        """Forget the peak of memory so far."""
        self.memory.reset()

    def read_memory(self) -> int:
        """Return the peak memory in bytes."""
        return self.memory.read()


class ProductsWorker:
    """Answers the commands about the bare matrix products."""

    def __init__(self, order: dict[str, Any]) -> None:
        settings = Settings.from_dict(order["settings"])
        self.products = BareProducts(settings.device, settings.precision, order["iterations"])

    def seconds(self, shapes: list[list[int]]) -> list[dict[str, float]]:
        """Time products; see ``BareProducts``."""
        seconds = [self.products.seconds(tuple(shape)) for shape in shapes]  # type: ignore[arg-type]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return seconds


COMMANDS = {"build", "warm_up", "steps", "profile", "reset_memory", "read_memory", "seconds"}


def answer(worker: Any, line: str) -> dict[str, Any]:
    """Return the answer to one line: {"result": ...} or {"error": ...}."""
    command = json.loads(line)
    name = command.pop("command")
    if name not in COMMANDS:
        return {"error": f"unknown command {name!r}"}
    try:
        return {"result": getattr(worker, name)(**command)}
    # A contender may fail in any way, and argparse leaves by SystemExit; the others are to go on.
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def serve(order: dict[str, Any], answers: TextIO) -> None:
    """Answer until the input ends."""
    torch.set_num_threads(order["settings"]["threads"])
    worker = ProductsWorker(order) if order["contender"] is None else TrainingWorker(order)
    for line in sys.stdin:
        answers.write(json.dumps(answer(worker, line)) + "\n")
        answers.flush()


def main() -> None:
    """Keep standard output for answers and send everything else to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
