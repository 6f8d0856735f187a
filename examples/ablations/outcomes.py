"""What a finished pretraining says in its log, and where results are kept."""

import math
from pathlib import Path
from typing import Any

from fairseq_maelm.sweep.log import log_records


def pretraining_marker(folder: Path, row: str) -> Path:
    """Where the result of a pretraining stands once it is finished or has failed."""
    return folder / "runs" / row / "pretraining.json"


def fine_tuning_marker(folder: Path, row: str, task: str, seed: int) -> Path:
    """Where the result of a fine-tuning stands once it is finished or has failed."""
    return folder / "runs" / row / task / f"seed_{seed}.json"


def last_loss(log: Path) -> dict[str, Any]:
    """The result of a pretraining: loss on held-out text in bits per predicted token, and speed.

    Raises:
        ValueError: it was never validated, or has diverged.
    """
    records = [record for _, record in log_records(log, ["valid"])]
    if not records:
        raise ValueError("no validation in the log")
    loss = records[-1].get("valid_loss", math.nan)
    if not math.isfinite(loss):
        raise ValueError(f"diverged: the loss on held-out text is {loss}")
    speeds = sorted(record["ups"] for _, record in log_records(log, ["train_inner"]) if record.get("ups", 0.0) > 0.0)
    return {"loss": loss, "updates_per_second": speeds[len(speeds) // 2] if speeds else None}
