"""A folder that is whole or absent; nothing that was there before is deleted."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

UNFINISHED = ".unfinished"


@contextmanager
def whole_folder(target: Path, replace: bool = False) -> Iterator[Path]:
    """Open a folder for writing that gets the name ``target`` only when the block ends without an exception.

    Until then it is a hidden sibling whose name ends in ".unfinished", and it is removed when the block fails; a killed
    process leaves it there, under that name.

    Args:
        target: must not exist, or be an empty folder.
        replace: let an existing folder give way: it is renamed to ``target``.old-1 or the next free number, once the
            new one is whole.

    Raises:
        FileExistsError: if ``target`` exists and is not to be replaced.
    """
    _check_free(target, replace)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())
        _check_free(target, replace)
        _publish(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _check_free(target: Path, replace: bool) -> None:
    if not target.exists() or (target.is_dir() and (replace or not any(target.iterdir()))):
        return
    hint = "name another folder" if not target.is_dir() else "name another folder, or give --replace to rename this one"
    raise FileExistsError(f"{target} exists already: {hint}")


def _publish(unfinished: Path, target: Path) -> None:
    old = None
    if target.exists():
        if any(target.iterdir()):
            old = next(
                path for number in count(1) if not (path := target.with_name(f"{target.name}.old-{number}")).exists()
            )
            target.rename(old)
        else:
            target.rmdir()
    try:
        unfinished.rename(target)
    except OSError:
        if old is not None:
            old.rename(target)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
