"""Registration of this package with fairseq: tasks, models and sizes, criterions, optimizers, fixes.

fairseq imports a --user-dir, and then each file in its folders tasks/ and models/. Importing ``fairseq_maelm.tasks``
calls ``register``, as do all functions that open checkpoints. ``import fairseq_maelm`` alone does not, to avoid
importing torch and fairseq: a program that uses our names in fairseq's functions must first call
``fairseq_maelm.register()``.

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


def registering_modules() -> Iterator[str]:
    """Yield the dotted names of the modules that register something when they are imported."""
    found = [path for folder in FOLDERS for path in sorted((_PACKAGE / folder).glob("[!_]*.py"))]
    found += sorted(_PACKAGE.rglob("task.py"))
    for path in found:
        yield ".".join([__package__, *path.relative_to(_PACKAGE).with_suffix("").parts])


def register() -> None:
    """Register the whole package with fairseq and apply its fixes, once in a process."""
    global _begun
    # Importing a task imports the folder tasks, which calls this function again.
    if _begun:
        return
    _begun = True
    try:
        # These import fairseq.
        from fairseq_maelm.checkpoints.plain_data import allow_namespaces
        from fairseq_maelm.fairseq_fixes import mend_fairseq
        from fairseq_maelm.training.screen import show_in_rank

        allow_namespaces()
        mend_fairseq()
        show_in_rank()
        for name in registering_modules():
            importlib.import_module(name)
    except BaseException:
        _begun = False
        raise
