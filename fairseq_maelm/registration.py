"""Registration of this package with fairseq: tasks, models and sizes, criterions, optimizers, fixes.

``register`` also applies the changes of ``fairseq_fixes``; fairseq's programs call it by importing their --user-dir,
each file in its folders tasks/ and models/, and programs that train call it themselves. Opening a checkpoint in a
user's program registers names only and changes nothing of fairseq, until one of our tasks builds a criterion to train
with.
``import fairseq_maelm`` alone does neither, to avoid importing torch and fairseq.

Modules to register are found by path: all modules in the folders named as in fairseq (tasks, models, ...), and every
task.py of a downstream task. To add or remove a downstream task, add or remove its folder.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# Folders in which all modules are registered; in other folders, only task.py is.
FOLDERS = ("models", "tasks", "criterions", "optim")
# The folder of changes to fairseq. Like all others it is found by name: everything may import this module.
_FIXES = "fairseq_fixes"

_begun = False
# Whether this process is one of fairseq's programs or of ours.
_is_ours = False


def claim_process() -> None:
    """Let ``register_names`` also apply the fixes: this process runs ``maelm``."""
    global _is_ours
    _is_ours = True


def registering_modules() -> Iterator[str]:
    """Yield the dotted names of the modules that register something when they are imported."""
    found = [path for folder in FOLDERS for path in sorted((_PACKAGE / folder).glob("[!_]*.py"))]
    found += sorted(_PACKAGE.rglob("task.py"))
    for path in found:
        yield ".".join([__package__, *path.relative_to(_PACKAGE).with_suffix("").parts])


def register() -> None:
    """Register the whole package with fairseq and apply its fixes, once in a process."""
    if _begun and not _is_ours:  # a checkpoint was opened before
        _mend_fairseq()
    claim_process()
    register_names()


def _mend_fairseq() -> None:
    importlib.import_module(f"{__package__}.{_FIXES}").mend_fairseq()


def register_names() -> None:
    """Register the whole package with fairseq, once in a process; in one of ``maelm``, apply the fixes as well."""
    global _begun
    # Importing a task imports the folder tasks, which calls this function again.
    if _begun:
        return
    _begun = True
    try:
        if _is_ours:
            _mend_fairseq()
        for name in registering_modules():
            importlib.import_module(name)
    except BaseException:
        _begun = False
        raise


def is_registered() -> bool:
    """Return whether names are registered, or are being registered."""
    return _begun
