"""Stopping a training run from a task, on all ranks at once and without saving what it is stopped for.

fairseq asks after every validation whether to stop (``should_stop_early``: has the loss of the first validation set
stopped improving?), saves, and leaves its loops. This question is the only place at which a plugin can be heard: the
limits of epochs and updates are read before the validation, so that setting them would train on for an update.
"""

import functools
import importlib
import logging
from typing import Any, Callable, Optional

from fairseq_maelm.fairseq_fixes.programs import training_programs

logger = logging.getLogger(__name__)

# Answers the question why to stop, or None to go on.
Reason = Callable[[], Optional[str]]


def stop_training_for(reason: Reason) -> None:
    """Make fairseq stop after the validation from which on ``reason`` returns a text, which is logged.

    The state it is stopped in is not saved: ``checkpoint_last.pt`` and ``checkpoint_best.pt`` stay as they were after
    the validation before. All ranks must get the same answer.

    Args:
        reason: asked after each validation and whenever fairseq might save.
    """
    importlib.import_module("fairseq_cli.train")
    for module in training_programs():
        _extend(module, reason)


def _extend(module: Any, reason: Reason) -> None:
    # A second run in the same process replaces the first one's reason.
    original = getattr(module.should_stop_early, "original", module.should_stop_early)

    @functools.wraps(original)
    def should_stop_early(cfg: Any, valid_loss: Optional[float]) -> bool:
        stop = bool(original(cfg, valid_loss))
        why = reason()
        if why is None:
            return stop
        logger.info("stopping training: %s", why)
        cfg.checkpoint.no_save = True
        return True

    should_stop_early.original = original  # type: ignore[attr-defined]
    module.should_stop_early = should_stop_early
