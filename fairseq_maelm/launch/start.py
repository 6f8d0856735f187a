"""Start a run: from an intact checkpoint, in a locked save folder, and only if it has not reached its limits.

fairseq-train fails with a long traceback if checkpoint_last.pt is truncated, and continues from a file with flipped
bits. If the file is missing, it starts at update 0 and overwrites the other checkpoints. Impossible progress values
in a checkpoint, such as update counts, cause a traceback, or a run that makes no update but reports success.
fairseq-train lets two runs write into one folder. A finished run makes one more update each time it is started again.
Tests: tests/end_to_end/test_save_folder.py; tests/robustness/rows.py for the metric of validation.
"""

import copy
import functools
import logging
import os
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints.plain_data import plain_sections
from fairseq_maelm.fairseq_fixes.private import hours_before, recorded_updates
from fairseq_maelm.fairseq_fixes.processes import broadcast_object
from fairseq_maelm.fairseq_fixes.stopping import restore_patience, validations_without_improvement
from fairseq_maelm.files.atomic import FolderLock, copy_file, remove_partial_files
from fairseq_maelm.launch.last_update import has_ended, jump
from fairseq_maelm.launch.machine import apart, processes_of_torchrun
from fairseq_maelm.launch.recorded_inputs import record_inputs
from fairseq_maelm.launch.save_folder import DEFAULT, Start, choose_start, read_without_weights
from fairseq_maelm.launch.screen import is_first_rank
from fairseq_maelm.launch.setup_files import read_setup_files, write_with_first_checkpoint

logger = logging.getLogger(__name__)

LOCK_FILE = ".fairseq-train.lock"

# Every criterion logs the loss; fairseq's trainer logs batch sizes and speed.
_LOSS, _OF_TRAINER = "loss", {"bsz", "wpb", "wps"}

# Folder locks that this process holds until it ends.
_locks: dict[str, FolderLock] = {}
# Names of groups of meters.
_LASTING: set[str] = set()


def begin_or_resume(cfg: Any, trainer: Any, load: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Load the checkpoint from which a run starts, if there is one, and make its batches; or exit with the reason.

    Args:
        cfg: fairseq's configuration of checkpoints.
        trainer: fairseq's trainer.
        load: fairseq's ``load_checkpoint`` for this trainer; called with a configuration of checkpoints.

    Returns:
        what fairseq's function returns: the state beyond weights and optimizer, or None; and the batches.
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
    continues = start.continues and not (cfg.reset_dataloader or cfg.reset_optimizer)
    path = Path(cfg.save_dir, DEFAULT) if start.file == DEFAULT else Path(start.file)
    path = path.with_name(f"{path.stem}{trainer.checkpoint_suffix}.pt")
    record_inputs(trainer, path if continues else None)
    if continues and not cfg.reset_lr_scheduler:
        _refuse_jump(trainer, path)
    if not cfg.no_save:
        write_with_first_checkpoint(read_setup_files(trainer.task, Path(cfg.save_dir)))
    return start


def _refuse_jump(trainer: Any, path: Path) -> None:
    """Raise a ValueError if a schedule would jump because the run has another last update than its checkpoint."""
    state = read_without_weights(path)
    before, updates = plain_sections(state, path), int(state["optimizer_history"][-1]["num_updates"])
    if "optimization" in before and (change := jump(_sections(trainer), before, updates)):
        raise ValueError(
            f"the run in {path} cannot continue after {updates} updates: {change}. Give the old value, or start a new "
            "run from this checkpoint by --finetune-from-model and another --save-dir"
        )


def _sections(trainer: Any) -> dict[str, Any]:
    """Return what schedules depend on as plain data; old classes of fairseq have a Namespace as their section."""
    sections = {name: getattr(trainer.cfg, name) for name in ("task", "lr_scheduler", "optimization")}
    return {
        name: OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else vars(section)
        for name, section in sections.items()
    }


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
        if has_ended(_sections(trainer), updates):
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

    Raises:
        ValueError: a sequence fits into no batch, or the metric is not logged; the message lists the logged metrics.
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
