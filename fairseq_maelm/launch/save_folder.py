"""Choose the checkpoint from which a run starts. For the reason, see ``fairseq_fixes.resuming``."""

import contextlib
import filecmp
import logging
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.file_io import PathManager

from fairseq_maelm.checkpoints.integrity import find_damage
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import CheckpointError, read_state, shown
from fairseq_maelm.checkpoints.reader import describe_checkpoint, is_described
from fairseq_maelm.files.atomic import PARTIAL_SUFFIX

logger = logging.getLogger(__name__)

# fairseq's default for --restore-file: the file with this name in the save folder.
DEFAULT = "checkpoint_last.pt"
LOCK_FILE = ".fairseq-train.lock"

# Progress values that fairseq uses unchecked: (table, name, largest absolute value); math.inf allows any float but NaN.
_LARGEST = (
    ("optimizer_history", "num_updates", 10**12),
    ("train_iterator", "epoch", 10**6),
    ("train_iterator", "iterations_in_epoch", 10**12),
    ("train_iterator", "ranks", 10**6),
    ("train_iterator", "batches", 10**12),
    ("extra_state", "previous_training_time", math.inf),
    ("extra_state", "best", math.inf),
    ("early_stopping", "best", math.inf),
    ("early_stopping", "num_runs", 10**6),
)

_NO_PROGRESS = "cannot be continued: it has no complete record of the progress"


class Progress(NamedTuple):
    """The progress that a checkpoint has recorded."""

    updates: int
    criterion: str  # class name
    obstacle: str  # why a run cannot continue from the checkpoint; "" if it can
    starts: int  # number of times that training has started or resumed until the checkpoint, also after a reset


class Start(NamedTuple):
    """The start of a run: the file to load, and whether this continues a run or begins a new one."""

    file: str  # for fairseq's ``--restore-file``
    continues: bool  # whether this run continues the run in its save folder
    begins: bool  # whether this is a new run, with new or pretrained weights


def checkpoint_files(folder: Path, suffix: str) -> list[Path]:
    """Return the files in a folder that are named like fairseq-train's checkpoints and so could be overwritten."""
    # Runs do not continue from files with other names, such as averages and crash.pt.
    name = re.compile(rf"checkpoint(?:_last|_best|\d+|_\d+_\d+|\.best_.+){re.escape(suffix)}\.pt")
    return sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []


def link_equal_checkpoints(folder: Path) -> None:
    """Make the best and the last checkpoint of a finished run one file with two names, if their contents are equal.

    No file is ever changed in place: checkpoints are written under another name and renamed.
    """
    best, last = folder / "checkpoint_best.pt", folder / DEFAULT
    if not (best.is_file() and last.is_file()) or best.samefile(last) or not filecmp.cmp(best, last, shallow=False):
        return
    partial = last.with_name(f"{last.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    with contextlib.suppress(OSError):  # a file system may have no links
        os.link(best, partial)
        os.replace(partial, last)


def read_progress(path: Path) -> Progress:
    """Read a checkpoint's progress but not its weights; raise a ValueError for files that are not checkpoints."""
    state = _read_to_continue(path)
    last = state["optimizer_history"][-1]
    if not {"num_updates", "criterion_name"} <= last.keys():
        raise ValueError(_NO_PROGRESS)
    obstacle = "" if state.get("last_optimizer_state") is not None else "has no optimizer state"
    if "train_iterator" not in state["extra_state"]:
        obstacle = "has no position in the data"
    return Progress(int(last["num_updates"]), str(last["criterion_name"]), obstacle, len(state["optimizer_history"]))


def _read_to_continue(path: Path) -> dict[str, Any]:
    """Read a checkpoint, and raise a ValueError if its recorded progress is damaged or has impossible values."""
    state = read_without_weights(path)
    tables = _tables_of_progress(state)
    for table, name, most in _LARGEST:
        value = tables[table].get(name, 1)
        if torch.is_tensor(value) and value.dim() == 0:  # a sum over ranks is a tensor
            value = value.item()
        if type(value) not in ((int, float) if most == math.inf else (int,)) or not abs(value) <= most:
            raise ValueError(f"cannot be continued: its {name} is {shown(value)}, which is not a possible value")
    return state


def _read_to_begin(path: Path) -> None:
    """Raise a ValueError if fairseq cannot begin a run with a checkpoint's weights."""
    _tables_of_progress(read_without_weights(path))


def _tables_of_progress(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables with a checkpoint's progress; raise a ValueError if a part that fairseq uses is no table."""
    history = _part(state, "optimizer_history", list)
    last = _part({"last update": history[-1]}, "last update") if history else {}
    extra = _part(state, "extra_state")
    iterator, stopping = _part(extra, "train_iterator"), _part(extra, "early_stopping")
    for table, name in ((state, "last_optimizer_state"), (last, "lr_scheduler_state"), (extra, "metrics")):
        _part(table, name)
    # fairseq once had the best loss in place of the schedule's state.
    has_schedule = "lr_scheduler_state" in last or "best_loss" in last
    if not has_schedule or "extra_state" not in state or ("train_iterator" in extra and "epoch" not in iterator):
        raise ValueError(_NO_PROGRESS)
    return {"optimizer_history": last, "extra_state": extra, "train_iterator": iterator, "early_stopping": stopping}


def _part(table: dict[str, Any], name: str, kind: type = dict) -> Any:
    value = table.get(name)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"cannot be continued: its {name} is {shown(value)}, which is not what fairseq saves")
    return kind() if value is None else value


def read_without_weights(path: Path) -> dict[str, Any]:
    """Read a checkpoint without its weights; the message of a ValueError omits the file name."""
    try:
        return read_state(path, mapped=True)
    except CheckpointError as error:
        raise ValueError(str(error).removeprefix(f"{path} ")) from error


def is_local(path: str) -> bool:
    """Return whether a path is in the local file system; fairseq handles remote paths."""
    return not PathManager.path_requires_pathmanager(path)


def whole_or_refused(path: Path, option: str) -> None:
    """Raise a ValueError if a file that the user has named is missing or damaged."""
    if path.name == CHECKPOINT_FILE:
        describe_checkpoint(path)
        return
    damage = None if is_described(path) else find_damage(path)
    if damage := damage or _unreadable(path, _read_to_continue if option == "--restore-file" else _read_to_begin):
        raise ValueError(f"{option} {path} {damage}")


def choose_start(cfg: Any, suffix: str, criterion: str) -> Start:
    """Choose the file from which a run starts, and log the reason if it is not fairseq's default.

    ``cfg`` is fairseq's configuration of checkpoints, ``suffix`` that of this rank's files, which fairseq adds to the
    returned name, and ``criterion`` a class name. A ValueError says why no file can be continued, or that the run would
    overwrite the checkpoints of another run.
    """
    folder = Path(cfg.save_dir)
    is_last = os.path.realpath(cfg.restore_file) == os.path.realpath(folder / DEFAULT)
    if cfg.restore_file != DEFAULT and not is_last:
        return Start(str(cfg.restore_file), _is_of_folder(cfg, folder, suffix), begins=False)
    last = folder / DEFAULT.replace(".pt", f"{suffix}.pt")
    others = [path for path in checkpoint_files(folder, suffix) if path != last]
    if last.exists():
        trouble = find_damage(last) or _unreadable(last)
        if not trouble:
            return Start(DEFAULT, continues=True, begins=False)
        trouble = f"{last} {trouble}"
    elif others and not cfg.no_save:
        trouble = f"there is no {last.name} although {folder} has other checkpoints"
    else:
        for option in ("continue_once", "finetune_from_model"):
            named = getattr(cfg, option, None)
            if named is not None and is_local(named):
                whole_or_refused(Path(named), f"--{option.replace('_', '-')}")
        return Start(DEFAULT, continues=False, begins=True)
    if cfg.restore_file != DEFAULT:
        raise ValueError(
            f"{trouble}. --restore-file names this file: replace it with an intact copy, or omit the option to "
            "continue from the newest intact checkpoint in the folder"
        )
    return Start(_newest_whole(others, trouble, suffix, criterion), continues=True, begins=False)


def _unreadable(path: Path, read: Callable[[Path], Any] = read_progress) -> str | None:
    try:
        read(path)
    except ValueError as error:
        return str(error)
    return None


def _is_of_folder(cfg: Any, folder: Path, suffix: str) -> bool:
    """Return whether --restore-file is in the save folder; refuse it if the folder holds checkpoints of another run."""
    if not is_local(cfg.restore_file):
        return False
    named = Path(cfg.restore_file.replace(".pt", f"{suffix}.pt"))
    whole_or_refused(named, "--restore-file")
    held = checkpoint_files(folder, suffix)
    is_inside = os.path.realpath(named.parent) == os.path.realpath(folder)
    if held and not cfg.no_save and not is_inside:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        names = ", ".join(path.name for path in held[:3]) + more
        raise ValueError(
            f"{folder} holds checkpoints of another run ({names}), which a run from --restore-file {named} would "
            "overwrite: name another --save-dir, remove these files, or omit --restore-file to continue that run"
        )
    return is_inside


def _newest_whole(others: list[Path], trouble: str, suffix: str, criterion: str) -> str:
    progress, skipped = _sorted_out(others, criterion)
    # After --reset-optimizer, older checkpoints may have more updates.
    for path in sorted(progress, key=lambda each: (progress[each].starts, progress[each].updates), reverse=True):
        if damage := find_damage(path):
            skipped[path] = damage
            continue
        also = f"; {_reasons(skipped)}" if skipped else ""
        logger.warning(
            "%s; training continues from the newest intact checkpoint, %s (%d updates)%s",
            *(trouble, path, progress[path].updates, also),
        )
        return str(path.with_name(f"{path.stem.removesuffix(suffix)}{path.suffix}"))
    why = f" ({_reasons(skipped)})" if skipped else ""
    raise ValueError(
        f"{trouble}, and training cannot continue from any other checkpoint{why}: replace the file with an intact "
        "copy, name another --save-dir, or remove the checkpoints to start again"
    )


def _sorted_out(paths: list[Path], criterion: str) -> tuple[dict[Path, Progress], dict[Path, str]]:
    """Return the progress of each file that seems fit to resume from, and the reason to skip each of the others."""
    progress: dict[Path, Progress] = {}
    skipped: dict[Path, str] = {}
    for path in paths:
        try:
            found = read_progress(path)
        except ValueError as error:
            skipped[path] = find_damage(path) or str(error)
            continue
        if found.obstacle:
            skipped[path] = found.obstacle
        elif found.criterion != criterion:
            skipped[path] = f"is of another run, trained with {found.criterion}"
        else:
            progress[path] = found
    return progress, skipped


def _reasons(paths: dict[Path, str]) -> str:
    return ", ".join(f"{path.name} {reason}" for path, reason in sorted(paths.items()))
