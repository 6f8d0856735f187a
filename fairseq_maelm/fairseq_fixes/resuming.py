"""Resume a run from an intact checkpoint, in a locked save folder, and only if it has not reached its limits.

Reason: fairseq-train fails with a long traceback if checkpoint_last.pt is truncated, and continues from a file with
flipped bits. If the file is missing, it starts at update 0 and overwrites the other checkpoints. Impossible progress
values in a checkpoint, such as update counts, cause a traceback, or a run that makes no update but reports success.
fairseq-train lets two runs write into one folder. A finished run makes one more update each time it is started again.
Test: tests/end_to_end/test_save_folder.py.
"""

import copy
import functools
import logging
import os
import sys
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from fairseq_maelm.checkpoints.plain_data import reason_of
from fairseq_maelm.fairseq_fixes.checkpoint_files import copy_whole
from fairseq_maelm.fairseq_fixes.collectives import broadcast_object
from fairseq_maelm.fairseq_fixes.early_stopping import restore_patience, validations_without_improvement, watch
from fairseq_maelm.fairseq_fixes.ema import load_with_average
from fairseq_maelm.fairseq_fixes.lasting_meters import restore_lasting_meters
from fairseq_maelm.fairseq_fixes.metric import check_validation
from fairseq_maelm.fairseq_fixes.replacements import replaces
from fairseq_maelm.files.atomic import FolderLock, remove_partial_files
from fairseq_maelm.launch.memory import choose_allocation
from fairseq_maelm.launch.recorded_inputs import record_inputs
from fairseq_maelm.launch.save_folder import DEFAULT, Start, choose_start, is_local
from fairseq_maelm.launch.setup_files import read_setup_files, write_with_first_checkpoint

logger = logging.getLogger(__name__)

LOCK_FILE = ".fairseq-train.lock"

_load_checkpoint = checkpoint_utils.load_checkpoint
# Folder locks that this process holds until it ends.
_locks: dict[str, FolderLock] = {}


@replaces(checkpoint_utils, "load_checkpoint")
@functools.wraps(_load_checkpoint)
def _load(cfg: Any, trainer: Any, **passthrough_args: Any) -> tuple[Any, Any]:
    watch(sys._getframe(1).f_globals)
    if trainer.device.type == "cpu":
        choose_allocation(trainer.cfg)
    if not is_local(cfg.save_dir):
        return tuple(_load_checkpoint(cfg, trainer, **passthrough_args))
    start = _decided_by_first_rank(trainer, functools.partial(_prepare, cfg, trainer))
    told = copy.deepcopy(cfg)
    told.restore_file = start.file
    if start.file not in (DEFAULT, cfg.restore_file):
        told.finetune_from_model = None
    extra_state, epoch_itr = _load_checkpoint(told, trainer, **passthrough_args)
    if extra_state is not None and not start.begins and not cfg.reset_meters:
        restore_lasting_meters(extra_state)
    if extra_state is not None and not start.begins and not cfg.reset_optimizer:
        if not cfg.reset_meters:
            restore_patience(extra_state)
        _check_end(trainer, epoch_itr, start)
    try:
        check_validation(trainer)
    except ValueError as error:
        _refuse(error)
    return extra_state, epoch_itr


@replaces(Trainer, "load_checkpoint")
@functools.wraps(load_with_average)
def _restore_or_refuse(self: Trainer, filename: str, *args: Any, **options: Any) -> Any:
    try:
        return load_with_average(self, filename, *args, **options)
    except (AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        logger.debug("the checkpoint's progress cannot be restored", exc_info=True)
        _refuse(f"training cannot continue from {filename} ({type(error).__name__}: {reason_of(error)})")


def _decided_by_first_rank(trainer: Any, decide: Callable[[], Start]) -> Start:
    """Return the first rank's decision on every rank; if ``decide`` fails there, exit with the error message."""
    start: Start | None = None
    refusal = None
    if distributed_utils.get_global_rank() == 0:
        try:
            start = decide()
        except (ValueError, OSError) as error:
            refusal = str(error)
    if distributed_utils.get_global_world_size() > 1:
        group = distributed_utils.get_global_group()
        start, refusal = broadcast_object((start, refusal), 0, group, trainer.device)
    if start is None:
        _refuse(refusal)
    return start


def _refuse(reason: Any) -> NoReturn:
    raise SystemExit(f"fairseq-train: error: {reason}" if distributed_utils.get_global_rank() == 0 else 1)


def _prepare(cfg: Any, trainer: Any) -> Start:
    if not cfg.no_save:
        _hold(Path(cfg.save_dir))
        remove_partial_files(Path(cfg.save_dir))
    start = choose_start(cfg, trainer.checkpoint_suffix, type(trainer.get_criterion()).__name__)
    continues = start.continues and not (cfg.reset_dataloader or cfg.reset_optimizer)
    path = Path(cfg.save_dir, DEFAULT) if start.file == DEFAULT else Path(start.file)
    record_inputs(trainer, path.with_name(f"{path.stem}{trainer.checkpoint_suffix}.pt") if continues else None)
    if not cfg.no_save:
        write_with_first_checkpoint(read_setup_files(trainer.task, Path(cfg.save_dir)))
    return start


def _hold(folder: Path) -> None:
    """Lock a folder until this process ends."""
    key = os.path.realpath(folder)
    if key in _locks:
        return
    lock = FolderLock(folder / LOCK_FILE, "fairseq-train", folder)
    lock.__enter__()
    _locks[key] = lock
    # Unlike atexit, this also works in processes that torch.multiprocessing has spawned.
    util.Finalize(None, lock.__exit__, exitpriority=0)


def _check_end(trainer: Any, epoch_itr: Any, start: Start) -> None:
    """Stop a run that has reached a limit, and refuse a checkpoint without optimizer state."""
    updates = trainer.get_num_updates()
    if start.continues:
        # The history is there even if the checkpoint has no optimizer state.
        updates = trainer._optim_history[-1]["num_updates"]
    limit = _limit_reached(trainer, epoch_itr, updates)
    if limit:
        further = "to continue it, raise this option of fairseq-train; for a new run, name another folder"
        schedule = trainer.cfg.lr_scheduler
        if 0 < getattr(schedule, "total_num_update", 0) <= updates or getattr(schedule, "phase_ratio", None):
            further = "its learning-rate schedule has ended; to train further, start a new run from its checkpoint"
        logger.info("this run is complete after %d updates (%s), so nothing is changed: %s", updates, limit, further)
        _restore_last(trainer, start)
        # fairseq checks this limit next, and the others only after another update.
        trainer.cfg.optimization.max_epoch = -1
    elif updates > trainer.get_num_updates():
        _refuse(
            f"the checkpoint of {updates} updates in {trainer.cfg.checkpoint.save_dir} has no optimizer state, so "
            "training cannot continue from it: start again in another --save-dir, or pass --reset-optimizer to "
            "keep its weights and restart at update 0 with a new schedule"
        )


def _restore_last(trainer: Any, start: Start) -> None:
    """Write checkpoint_last.pt for a complete run in which it is missing or damaged, for example after a full disk."""
    cfg, suffix = trainer.cfg.checkpoint, trainer.checkpoint_suffix
    was_found = start.continues and start.file not in (DEFAULT, cfg.restore_file)
    if was_found and not (cfg.no_save or cfg.no_last_checkpoints) and trainer.should_save_checkpoint_on_current_rank:
        source, target = (name.replace(".pt", f"{suffix}.pt") for name in (start.file, DEFAULT))
        copy_whole(source, os.path.join(cfg.save_dir, target), overwrite=True)


def _limit_reached(trainer: Any, epoch_itr: Any, updates: int) -> str | None:
    limits, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    if limits.max_update and updates >= limits.max_update:
        return f"--max-update {limits.max_update}"
    if limits.max_epoch and epoch_itr.next_epoch_idx > limits.max_epoch:
        return f"--max-epoch {limits.max_epoch}"
    # The saved time is the same on all ranks.
    if 0 < limits.stop_time_hours < trainer._previous_training_time / 3600:
        return f"--stop-time-hours {limits.stop_time_hours}"
    if 0 < patience <= validations_without_improvement():
        return f"--patience {patience}"
    return None
