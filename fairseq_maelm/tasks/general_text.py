"""The losses before the first update of domain adaptation, and the bound on that of general text."""

import logging
from pathlib import Path
from typing import Any

from fairseq.logging import metrics

from fairseq_maelm.launch.save_folder import checkpoint_files
from fairseq_maelm.launch.start import lasting

logger = logging.getLogger(__name__)

# The name of the validation set of general text.
GENERAL = "general"
# The loss before the first update is stored in a fairseq meter: checkpoints save meters, and resumed runs restore them,
# but --finetune-from-model does not.
_METERS, _METER = lasting("general_at_start"), "loss"
_STEPS = "max_valid_steps"  # 0 for all batches


def start() -> float | None:
    """Return the loss before the first update, in bits per predicted token, or None if not measured yet."""
    meter = metrics.get_meter(_METERS, _METER)
    return None if meter is None else float(meter.avg)


def measure_start(trainer: Any, bound: float) -> None:
    """Measure and store the loss before the first update, like fairseq's validation; call it on all ranks."""
    loss = _measure(trainer, GENERAL)
    with metrics.aggregate(_METERS, new_root=True):
        metrics.log_scalar(_METER, loss)
        metrics.log_scalar(_STEPS, trainer.cfg.dataset.max_valid_steps or 0)
    logger.info("general loss at the start: %.3f bits per masked token, at most %.3f allowed", loss, loss + bound)


def log_start(trainer: Any) -> None:
    """Log the losses of a run that starts from a checkpoint before its first update; call it on all ranks."""
    dataset = trainer.cfg.dataset
    if trainer.get_num_updates() or dataset.disable_validation or not trainer.cfg.checkpoint.finetune_from_model:
        return
    for subset in dataset.valid_subset.split(","):
        if subset != GENERAL or start() is None:
            loss = _measure(trainer, subset)
            logger.info("%s loss before the first update: %.3f bits per masked token", subset, loss)


def _measure(trainer: Any, subset: str) -> float:
    batches = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with metrics.aggregate(new_root=True) as validation:
        for batch in batches:
            trainer.valid_step(batch)
    return float(validation.get_smoothed_value("loss"))


def check_part(trainer: Any) -> None:
    """Refuse to compare with a start that was measured on another part of the general text."""
    meter, steps = metrics.get_meter(_METERS, _STEPS), trainer.cfg.dataset.max_valid_steps or 0
    first = 0 if meter is None else int(meter.avg)
    if steps != first:
        was, now = (f"with --max-valid-steps {number}" if number else "on all batches" for number in (first, steps))
        raise ValueError(
            f"--general-loss-bound would compare a loss {now} with that before the first update, which was measured "
            f"{was}: resume with the same --max-valid-steps"
        )


def excess(loss: float, bound: float, trainer: Any) -> str | None:
    """Return a reason to end the run if ``loss`` > ``start()`` + ``bound`` (bits per predicted token), else None."""
    first = start()
    # NaN ends the run too.
    if first is None or loss <= first + bound:
        return None
    advice = "nor was an earlier one: lower --lr, raise --general-ratio or the bound, or validate more often"
    if checkpoint_files(Path(trainer.cfg.checkpoint.save_dir), ""):
        advice = "use the last checkpoint"
    return (
        f"the general loss is {loss:.3f} bits per masked token, above its bound of {first + bound:.3f} "
        f"({first:.3f} before the first update + {bound:g}). This state is not saved; {advice}"
    )
