"""What a worker can be told to do with a training run."""

from typing import Any, Protocol

from training_step.clocks import Clock, Stages
from training_step.settings import Settings


class Session(Protocol):
    """A training that takes steps on command."""

    settings: Settings
    stages: Stages  # where the stages of a step add up their time

    def build(self) -> dict[str, Any]:
        """Make data, model and optimizer; says the sizes that costs follow from."""

    def load(self) -> Any:
        """Return the next batch, made now or by the workers of the data loader."""

    def take_prepared(self) -> Any:
        """Return the next of the batches that were made in advance."""

    def step(self, batch: Any) -> bool:
        """Take one whole training step; return False if the loss scale overflowed, and so the weights stayed."""


def run_steps(session: Session, count: int, untimed: int, loaded: bool) -> dict[str, float]:
    """Return the seconds of one step, the mean of ``count``, after ``untimed`` ones.

    A timed step that did not update the weights, and so did less work, is a ValueError.
    """
    fetch = session.load if loaded else session.take_prepared
    for _ in range(untimed):
        session.step(fetch())
    clock = Clock(session.settings.device)
    updated = [session.step(fetch()) for _ in range(count)]
    seconds = clock.read()
    if not all(updated):
        raise ValueError("the loss scale overflowed in a timed step: raise --warm-up")
    return {name: value / count for name, value in seconds.items()}


def profile(session: Session, count: int) -> dict[str, float]:
    """Seconds of each stage of one step, the mean of ``count``; "other" is the rest, "total" all of it.

    The forward pass is one stage, "forward", where it is compiled as a whole.
    On a GPU every stage's start and end wait for the device, so the total may exceed that of an undisturbed step.
    """
    stages = session.stages
    stages.seconds.clear()
    stages.recording = True
    clock = Clock(session.settings.device)
    for _ in range(count):
        stages.start("data")
        batch = session.load()
        stages.end("data")
        session.step(batch)
    total = clock.read()["wall"]
    stages.recording = False
    seconds = dict(stages.seconds)
    if "encoder forward" in seconds:
        # The criterion runs the model, which runs encoder and decoder: what is left is head and loss.
        inner = seconds["encoder forward"] + seconds.get("decoder forward", 0.0)
        seconds["head and loss"] = seconds.pop("forward") - inner
    seconds["other"] = total - sum(seconds.values())
    return {**{stage: value / count for stage, value in seconds.items()}, "total": total / count}
