"""What a save folder holds, and from which file a run goes on: the decision that one rank makes for all.

Reason, versions and test: see ``resuming``, which asks.
"""

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.file_io import PathManager

from fairseq_maelm.checkpoint_data import reason_of
from fairseq_maelm.fairseq_fixes.damage import find_damage

logger = logging.getLogger(__name__)

# fairseq's default for --restore-file, which means the file of this name in the save folder.
DEFAULT = "checkpoint_last.pt"


class Progress(NamedTuple):
    """How far the run of a checkpoint had come.

    Attributes:
        updates: made.
        criterion: the class's name.
        obstacle: why a run cannot go on from it, in a few words; "" if it can.
    """

    updates: int
    criterion: str
    obstacle: str


class Start(NamedTuple):
    """Where a run starts.

    Attributes:
        file: for fairseq's ``--restore-file``.
        continues: whether it goes on with the run of its save folder.
        begins: whether it is a new run, with or without the weights of another.
    """

    file: str
    continues: bool
    begins: bool


def checkpoint_files(folder: Path, suffix: str) -> list[Path]:
    """Return the files of a folder with the names that fairseq-train gives to checkpoints, and overwrites."""
    # No run continues from others, such as averages and what a crash leaves.
    name = re.compile(rf"checkpoint(?:_last|_best|\d+|_\d+_\d+|\.best_.+){re.escape(suffix)}\.pt")
    return sorted(path for path in folder.iterdir() if name.fullmatch(path.name)) if folder.is_dir() else []


def read_progress(path: Path) -> Progress:
    """Read how far a run had come, without reading the weights; ValueError if it is no checkpoint of a training."""
    state = _read(path)
    try:
        last = state["optimizer_history"][-1]
        updates, criterion, extra = int(last["num_updates"]), str(last["criterion_name"]), state["extra_state"]
    except Exception as error:
        raise ValueError(f"cannot be read as a checkpoint ({reason_of(error)})") from error
    obstacle = "" if state.get("last_optimizer_state") is not None else "holds no optimizer state"
    if "train_iterator" not in extra:
        obstacle = "does not say where in the data it was"
    return Progress(updates, criterion, obstacle)


def _read(path: Path) -> Any:
    try:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # The format of torch before 1.6.
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"cannot be read as a checkpoint ({reason_of(error)})") from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError('cannot be read as a checkpoint (it holds no weights under "model")')
    return state


def is_local(path: str) -> bool:
    """Tell whether a path is one of this machine's file system: no others are looked after here."""
    return not PathManager.path_requires_pathmanager(path)


def whole_or_refused(path: Path, option: str) -> None:
    """Refuse a file that the user has named and that is missing or damaged."""
    if damage := find_damage(path) or _unreadable(path, _read):
        raise ValueError(f"{option} {path} {damage}")


def choose_start(cfg: Any, suffix: str, criterion: str) -> Start:
    """Decide from which file a run goes on, and log why if it is not the one that the user named.

    Args:
        cfg: fairseq's configuration of checkpoints.
        suffix: of the names of this rank's checkpoints; the answer is without it, as fairseq adds it.
        criterion: the class's name.

    Raises:
        ValueError: no file can be continued, or the run would overwrite the checkpoints of another one; one line.
    """
    folder = Path(cfg.save_dir)
    if cfg.restore_file != DEFAULT and not _is_the_last(cfg.restore_file, folder):
        return Start(str(cfg.restore_file), _is_of_folder(cfg, folder, suffix), begins=False)
    last = _with_suffix(folder / DEFAULT, suffix)
    others = [path for path in checkpoint_files(folder, suffix) if path != last]
    if last.exists():
        trouble = find_damage(last) or _unreadable(last)
        if not trouble:
            return Start(DEFAULT, continues=True, begins=False)
        trouble = f"{last} {trouble}"
    elif others and not cfg.no_save:
        trouble = f"there is no {last.name} beside the other checkpoints of {folder}"
    else:
        for option in ("continue_once", "finetune_from_model"):
            named = getattr(cfg, option, None)
            if named is not None and is_local(named):
                whole_or_refused(Path(named), f"--{option.replace('_', '-')}")
        return Start(DEFAULT, continues=False, begins=True)
    if cfg.restore_file != DEFAULT:
        raise ValueError(
            f"{trouble}, and --restore-file asks for this file: put a whole copy in its place, or leave the option out "
            "to go on from the newest whole checkpoint of the folder"
        )
    return Start(_newest_whole(others, trouble, suffix, criterion), continues=True, begins=False)


def _is_the_last(path: str, folder: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(folder / DEFAULT)


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")


def _unreadable(path: Path, read: Callable[[Path], Any] = read_progress) -> str | None:
    try:
        read(path)
    except ValueError as error:
        return str(error)
    return None


def _is_of_folder(cfg: Any, folder: Path, suffix: str) -> bool:
    """Tell whether a file that the user has named is in the save folder; refuse a bad one, or one of another run."""
    if not is_local(cfg.restore_file):
        return False
    named = Path(cfg.restore_file.replace(".pt", f"{suffix}.pt"))
    whole_or_refused(named, "--restore-file")
    held = checkpoint_files(folder, suffix)
    lies_in_folder = os.path.realpath(named.parent) == os.path.realpath(folder)
    if held and not cfg.no_save and not lies_in_folder:
        raise ValueError(
            f"{folder} holds checkpoints of another run ({_names(held)}), which a run from --restore-file {named} "
            "would overwrite: name another --save-dir, remove these files, or leave --restore-file out to continue "
            "their run"
        )
    return lies_in_folder


def _newest_whole(others: list[Path], trouble: str, suffix: str, criterion: str) -> str:
    progress, passed_over = _places(others, criterion)
    for path in sorted(progress, key=lambda each: progress[each].updates, reverse=True):
        if damage := find_damage(path):
            passed_over[path] = damage
            continue
        also = f"; {_reasons(passed_over)}" if passed_over else ""
        logger.warning(
            "%s; training goes on from %s, the newest whole checkpoint, after %d updates%s",
            *(trouble, path, progress[path].updates, also),
        )
        return str(path.with_name(f"{path.stem.removesuffix(suffix)}{path.suffix}"))
    why = f" ({_reasons(passed_over)})" if passed_over else ""
    raise ValueError(
        f"{trouble}, and there is no other checkpoint that training could go on from{why}: put a whole copy in its "
        "place, name another --save-dir, or remove the checkpoints to start again"
    )


def _places(paths: list[Path], criterion: str) -> tuple[dict[Path, Progress], dict[Path, str]]:
    """Return the files that a run could continue from if they are whole, and why it could not from the others."""
    progress: dict[Path, Progress] = {}
    not_these: dict[Path, str] = {}
    for path in paths:
        try:
            found = read_progress(path)
        except ValueError as error:
            not_these[path] = find_damage(path) or str(error)
            continue
        if found.obstacle:
            not_these[path] = found.obstacle
        elif found.criterion != criterion:
            not_these[path] = f"is of another run, trained with {found.criterion}"
        else:
            progress[path] = found
    return progress, not_these


def _reasons(paths: dict[Path, str]) -> str:
    return ", ".join(f"{path.name} {reason}" for path, reason in sorted(paths.items()))


def _names(paths: list[Path]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(path.name for path in paths[:3]) + more
