"""Registration of this package with fairseq: tasks, models and sizes, criterions, optimizers, fixes.

A process of fairseq-train or ``maelm`` also gets the changes of ``fairseq_fixes``. A user's own program does not:
opening a checkpoint there registers names and changes nothing of fairseq, until one of our tasks builds a criterion to
train with.

fairseq imports a --user-dir, and then each file in its folders tasks/ and models/. Importing ``fairseq_maelm.tasks``
first is what fairseq's programs do. ``import fairseq_maelm`` alone registers nothing, to avoid importing torch and
fairseq: a program that uses our names in fairseq's functions must first call ``fairseq_maelm.register()``.

Modules to register are found by path: all modules in the folders named as in fairseq (tasks, models, ...), and every
task.py of a downstream task. To add or remove a downstream task, add or remove its folder.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# Folders in which all modules are registered; in other folders, only task.py is.
FOLDERS = ("models", "tasks", "criterions", "optim")

_begun = False
# Whether this process is one of fairseq's programs or of ours.
_is_ours = False


def claim_process() -> None:
    """Let ``register`` also change fairseq: this process is a program of fairseq or ours, not a user's."""
    global _is_ours
    _is_ours = True


def registering_modules() -> Iterator[str]:
    """Yield the dotted names of the modules that register something when they are imported."""
    found = [path for folder in FOLDERS for path in sorted((_PACKAGE / folder).glob("[!_]*.py"))]
    found += sorted(_PACKAGE.rglob("task.py"))
    for path in found:
        yield ".".join([__package__, *path.relative_to(_PACKAGE).with_suffix("").parts])


def register() -> None:
    """Register the whole package with fairseq, once in a process; in a claimed process, apply the fixes as well."""
    global _begun
    # Importing a task imports the folder tasks, which calls this function again.
    if _begun:
        return
    _begun = True
    try:
        if _is_ours:
            # These import fairseq.
            from fairseq_maelm.fairseq_fixes import mend_fairseq
            from fairseq_maelm.training.screen import show_in_rank

            mend_fairseq()
            show_in_rank()
        for name in registering_modules():
            importlib.import_module(name)
    except BaseException:
        _begun = False
        raise


def register_in_program() -> None:
    """Register the package in a program of fairseq, which imports ``fairseq_maelm.tasks`` before anything else."""
    if not _begun:
        claim_process()
        register()
