"""Resume a run by the rules of ``launch.start``, and at the same position in the data.

Checkpoints store how many batches each rank has read in the epoch, and fairseq skips as many on each rank of a resumed
run. With more ranks than before it leaves batches out, or fails because it skips all of them; with fewer ranks it reads
batches twice. All ranks together read the batches of an epoch in an order that does not depend on the number of ranks,
so the position can be converted. If the number of batches has changed, the same fraction is skipped.
Tests: tests/fairseq_fixes/test_resuming.py; tests/end_to_end/test_save_folder.py, test_distributed.py.
"""

import functools
import logging
import sys
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

from fairseq_maelm.checkpoints.plain_data import reason_of
from fairseq_maelm.fairseq_fixes.patches import replaces
from fairseq_maelm.fairseq_fixes.stopping import watch_patience
from fairseq_maelm.fairseq_fixes.updates import load_with_average
from fairseq_maelm.launch.memory import choose_allocation
from fairseq_maelm.launch.save_folder import is_local
from fairseq_maelm.launch.start import begin_or_resume, refuse

logger = logging.getLogger(__name__)

_PLACE, _RANKS, _BATCHES = "iterations_in_epoch", "ranks", "batches"

_load_checkpoint = checkpoint_utils.load_checkpoint
_state_dict = EpochBatchIterator.state_dict
_load_state_dict = EpochBatchIterator.load_state_dict


@replaces(
    checkpoint_utils,
    "load_checkpoint",
    why="if checkpoint_last.pt is truncated, a run fails; if it is missing, the run restarts and overwrites the other "
    "checkpoints; two runs can write to one folder; a complete run makes one more update; with another --max-update, "
    "the learning rate jumps",
    upstream="no: these rules are specific to our save folder",
)
@functools.wraps(_load_checkpoint)
def _load(cfg: Any, trainer: Any, **passthrough_args: Any) -> tuple[Any, Any]:
    watch_patience(sys._getframe(1).f_globals)
    if trainer.device.type == "cpu":
        choose_allocation(trainer.cfg)
    load = functools.partial(_load_checkpoint, trainer=trainer, **passthrough_args)
    return begin_or_resume(cfg, trainer, load) if is_local(cfg.save_dir) else tuple(load(cfg))


@replaces(
    Trainer,
    "load_checkpoint",
    why="--store-ema cannot start from a checkpoint without an average; another run's checkpoint causes a traceback",
    upstream="in part: the average",
)
@functools.wraps(load_with_average)
def _restore_or_refuse(self: Trainer, filename: str, *args: Any, **options: Any) -> Any:
    try:
        return load_with_average(self, filename, *args, **options)
    except (AssertionError, ValueError) as error:  # of fairseq and of optimizers, for the state of another run
        logger.debug("the checkpoint's progress cannot be restored", exc_info=True)
        refuse(f"training cannot continue from {filename} ({type(error).__name__}: {reason_of(error)})")


_OTHER_POSITION = "a run that resumes with another number of GPUs or batch size skips batches, or reads them twice"


@replaces(EpochBatchIterator, "state_dict", why=_OTHER_POSITION)
@functools.wraps(_state_dict)
def _with_sizes(self: EpochBatchIterator) -> dict[str, Any]:
    return {**_state_dict(self), _RANKS: self.num_shards, _BATCHES: len(self.frozen_batches)}


@replaces(EpochBatchIterator, "load_state_dict", why=_OTHER_POSITION)
@functools.wraps(_load_state_dict)
def _to_same_position(self: EpochBatchIterator, state_dict: dict[str, Any]) -> None:
    # Checkpoints of fairseq alone have no sizes.
    if _RANKS in state_dict and _BATCHES in state_dict:
        read = state_dict[_PLACE] * state_dict[_RANKS] * len(self.frozen_batches)
        # Rounded down: rather than leave batches out, the ranks repeat less than one batch each.
        state_dict = {**state_dict, _PLACE: read // (max(state_dict[_BATCHES], 1) * self.num_shards)}
    _load_state_dict(self, state_dict)
