"""Start a run: from an intact checkpoint, in a locked save folder, at the same position in the data.

fairseq-train fails with a long traceback if checkpoint_last.pt is truncated, and continues from a file with flipped
bits. If the file is missing, it starts at update 0 and overwrites the other checkpoints. Impossible progress values
in a checkpoint, such as update counts, cause a traceback, or a run that makes no update but reports success.
fairseq-train lets two runs write into one folder. A finished run makes one more update each time it is started again.

Checkpoints store how many batches each rank has read in the epoch, and fairseq skips as many on each rank of a resumed
run. With more ranks than before it leaves batches out, or fails because it skips all of them; with fewer ranks it reads
batches twice. All ranks together read the batches of an epoch in an order that does not depend on the number of ranks,
so the position can be converted. If the number of batches has changed, the same fraction is skipped.
Tests: tests/fairseq_fixes/test_resuming.py; tests/end_to_end/test_save_folder.py, test_distributed.py;
tests/robustness/rows.py for the metric of validation.
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
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from fairseq_maelm.checkpoints.plain_data import reason_of
from fairseq_maelm.fairseq_fixes import replaces
from fairseq_maelm.fairseq_fixes.private import hours_before, recorded_updates
from fairseq_maelm.fairseq_fixes.processes import broadcast_object
from fairseq_maelm.fairseq_fixes.stopping import restore_patience, validations_without_improvement, watch_patience
from fairseq_maelm.fairseq_fixes.updates import load_with_average
from fairseq_maelm.files.atomic import FolderLock, copy_file, remove_partial_files
from fairseq_maelm.launch.last_update import has_ended, jump
from fairseq_maelm.launch.machine import apart, processes_of_torchrun
from fairseq_maelm.launch.memory import choose_allocation
from fairseq_maelm.launch.run_record import changed_inputs, options_of, read_record, write_with_first_checkpoint
from fairseq_maelm.launch.save_folder import DEFAULT, LOCK_FILE, Start, choose_start, is_local, read_progress
from fairseq_maelm.launch.screen import is_first_rank

logger = logging.getLogger(__name__)

_PLACE, _RANKS, _BATCHES = "iterations_in_epoch", "ranks", "batches"

_load_checkpoint = checkpoint_utils.load_checkpoint
_state_dict = EpochBatchIterator.state_dict
_load_state_dict = EpochBatchIterator.load_state_dict

# Every criterion logs the loss; fairseq's trainer logs batch sizes and speed.
_LOSS, _OF_TRAINER = "loss", {"bsz", "wpb", "wps"}

# Folder locks that this process holds until it ends.
_locks: dict[str, FolderLock] = {}
# Names of groups of meters.
_LASTING: set[str] = set()


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


def begin_or_resume(cfg: Any, trainer: Any, load: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Load the checkpoint from which a run starts, if there is one, and make its batches; or exit with the reason.

    ``load`` is fairseq's ``load_checkpoint`` for this trainer, which takes fairseq's configuration of checkpoints. Like
    it, return the state beyond weights and optimizer, or None; and the batches.
    """
    _check_machine(trainer)
    start = _decided_by_first_rank(trainer, functools.partial(_prepare, cfg, trainer))
    told = copy.deepcopy(cfg)
    told.restore_file = start.file
    if start.file not in (DEFAULT, cfg.restore_file):
        told.finetune_from_model = None
    # A head of the same size may have had other labels; --restore-file and --continue-once take it over.
    begins_anew = start.begins and told.finetune_from_model and not getattr(told, "continue_once", None)
    trainer.get_model().takes_heads = not begins_anew
    extra_state, epoch_itr = load(told)
    if extra_state is not None and not start.begins and not cfg.reset_meters:
        _restore_lasting_meters(extra_state)
    if extra_state is not None and not start.begins and not cfg.reset_optimizer:
        if not cfg.reset_meters:
            restore_patience(extra_state)
        _check_end(trainer, epoch_itr, start)
    try:
        _check_validation(trainer)
    except ValueError as error:
        refuse(error)
    return extra_state, epoch_itr


def _check_machine(trainer: Any) -> None:
    """Exit if torchrun has started several runs in one folder, or fairseq's --fp16 does not work without a GPU."""
    if distributed_utils.get_global_world_size() < processes_of_torchrun():
        refuse(apart(trainer.cuda), is_first_rank())
    common = trainer.cfg.common
    if common.fp16 and not (trainer.cuda or common.fp16_no_flatten_grads):
        refuse("--fp16 needs a GPU: omit it, or give --precision bf16 instead")


def lasting(name: str) -> str:
    """Restore the group of meters with this name, as given to ``metrics.aggregate``, whenever a run resumes.

    fairseq saves all meters in checkpoints, but restores none if the checkpoint was saved at the end of an epoch.
    """
    _LASTING.add(name)
    return name


def _restore_lasting_meters(extra_state: dict[str, Any]) -> None:
    saved = extra_state.get("metrics") or {}
    metrics.load_state_dict({name: saved[name] for name in sorted(_LASTING) if name in saved})


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
        refuse(refusal)
    return start


def refuse(reason: Any, prints: bool = True) -> NoReturn:
    """Exit with a reason, which the first rank prints, unless it is told not to."""
    shown = prints and distributed_utils.get_global_rank() == 0
    raise SystemExit(f"fairseq-train: error: {reason}" if shown else 1)


def _prepare(cfg: Any, trainer: Any) -> Start:
    if not cfg.no_save:
        _hold(Path(cfg.save_dir))
        remove_partial_files(Path(cfg.save_dir))
    start = choose_start(cfg, trainer.checkpoint_suffix, type(trainer.get_criterion()).__name__)
    if start.continues and not (cfg.reset_dataloader or cfg.reset_optimizer):
        _refuse_another_run(cfg, trainer, start)
    if not cfg.no_save:
        write_with_first_checkpoint(trainer.task, trainer.cfg, Path(cfg.save_dir))
    return start


def _refuse_another_run(cfg: Any, trainer: Any, start: Start) -> None:
    """Raise a ValueError if the run in the save folder has other inputs, or if a schedule would jump."""
    path = Path(cfg.save_dir, DEFAULT) if start.file == DEFAULT else Path(start.file)
    path = path.with_name(f"{path.stem}{trainer.checkpoint_suffix}.pt")
    record = read_record(path.parent, trainer.checkpoint_suffix)
    if record is None:
        return
    if changes := changed_inputs(record, trainer.cfg):
        raise ValueError(
            f"the inputs have changed since the run in {path.parent} began: {changes}. Give the inputs of this run, or "
            "name another --save-dir; --reset-dataloader continues with the new inputs"
        )
    updates = read_progress(path).updates
    known = "optimization" in record.options and not cfg.reset_lr_scheduler
    if known and (change := jump(options_of(trainer.cfg), record.options, updates)):
        raise ValueError(
            f"the run in {path} cannot continue after {updates} updates: {change}. Give the old value, or start a new "
            "run from this checkpoint by --finetune-from-model and another --save-dir"
        )


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
        updates = recorded_updates(trainer)
    limit = _limit_reached(trainer, epoch_itr, updates)
    if limit:
        further = "to continue it, raise this option of fairseq-train; for a new run, name another folder"
        if has_ended(options_of(trainer.cfg), updates):
            further = "its schedule has ended; to train further, start a new run from its checkpoint"
        logger.info("this run is complete after %d updates (%s), so nothing is changed: %s", updates, limit, further)
        _restore_last(trainer, start)
        # fairseq checks this limit next, and the others only after another update.
        trainer.cfg.optimization.max_epoch = -1
    elif updates > trainer.get_num_updates():
        refuse(
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
        copy_file(Path(source), Path(cfg.save_dir, target))


def _limit_reached(trainer: Any, epoch_itr: Any, updates: int) -> str | None:
    limits, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    if limits.max_update and updates >= limits.max_update:
        return f"--max-update {limits.max_update}"
    if limits.max_epoch and epoch_itr.next_epoch_idx > limits.max_epoch:
        return f"--max-epoch {limits.max_epoch}"
    if 0 < limits.stop_time_hours < hours_before(trainer):
        return f"--stop-time-hours {limits.stop_time_hours}"
    if 0 < patience <= validations_without_improvement():
        return f"--patience {patience}"
    return None


def _check_validation(trainer: Any) -> None:
    """Make the batches of each validation set and, if the metric is not the loss, validate one; called on all ranks.

    fairseq makes these batches and looks up the metric only at the first validation, perhaps hours after the start, and
    then fails with a traceback.
    """
    cfg = trainer.cfg
    metric = cfg.checkpoint.best_checkpoint_metric
    for subset in () if cfg.dataset.disable_validation else cfg.dataset.valid_subset.split(","):
        try:
            batches = trainer.get_valid_iterator(subset)
        except ValueError as error:
            # Data sets name the option of training.
            raise ValueError(str(error).replace("--max-tokens ", "--max-tokens-valid ")) from error
        if metric == _LOSS:
            continue
        with metrics.aggregate(new_root=True) as found:
            trainer.valid_step(batches.first_batch)
        logged = sorted(name for name in {*found} - _OF_TRAINER if not name.startswith("_"))
        if metric not in logged:
            raise ValueError(
                f"validation on {subset} logs no {metric}, but only {', '.join(logged)}: choose one by --metric, "
                f"in fairseq-train --best-checkpoint-metric, or set the criterion's option that adds {metric}"
            )
