"""The loss on general text, a measure of forgetting in domain adaptation, and its bound."""

import logging
from typing import Any

from fairseq.logging import metrics

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
    batches = trainer.get_valid_iterator(GENERAL).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with metrics.aggregate(new_root=True) as validation:
        for batch in batches:
            trainer.valid_step(batch)
    loss = float(validation.get_smoothed_value("loss"))
    with metrics.aggregate(_METERS, new_root=True):
        metrics.log_scalar(_METER, loss)
        metrics.log_scalar(_STEPS, trainer.cfg.dataset.max_valid_steps or 0)
    logger.info("general loss at the start: %.3f bits per masked token, at most %.3f allowed", loss, loss + bound)


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


def excess(loss: float, bound: float) -> str | None:
    """Return a reason to end the run if ``loss`` > ``start()`` + ``bound`` (bits per predicted token), else None."""
    first = start()
    # NaN ends the run too.
    if first is None or loss <= first + bound:
        return None
    return (
        f"the general loss is {loss:.3f} bits per masked token, above its bound of {first + bound:.3f} "
        f"({first:.3f} before the first update + {bound:g}). This state is not saved; use the last checkpoint"
    )
