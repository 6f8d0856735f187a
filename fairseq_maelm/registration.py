"""All that this package adds to fairseq, made known to it: tasks, model and sizes, criterions, optimizer, repairs.

fairseq imports a --user-dir and then every file of its folders tasks/ and models/. Importing ``fairseq_maelm.tasks``
calls ``register``; so does whatever opens a checkpoint, whose task may be any of ours. ``import fairseq_maelm`` alone
registers nothing, since that would import torch and fairseq: a program that gives our names to fairseq's functions by
itself calls ``fairseq_maelm.register()`` before.

Nothing is named here, as in fairseq's own folders: what is registered lies in the folders that fairseq has for it, or,
for a downstream task, in files called task.py and criterion.py. Such a task comes and goes with its folder.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# fairseq's own names of the folders and, elsewhere in the package, of the files.
FOLDERS = ("models", "tasks", "criterions", "optim")
FILES = ("task.py", "criterion.py")

_begun = False


def registering_modules() -> Iterator[str]:
    """Yield the dotted names of the modules that register something with fairseq when they are imported."""
    found = [path for folder in FOLDERS for path in sorted((_PACKAGE / folder).glob("[!_]*.py"))]
    found += [path for name in FILES for path in sorted(_PACKAGE.rglob(name))]
    for path in found:
        yield ".".join([__package__, *path.relative_to(_PACKAGE).with_suffix("").parts])


def register() -> None:
    """Make fairseq know all of this package, and work as this package needs it; the first call in a process does it."""
    global _begun
    # The imports below come back here: importing a task imports the folder tasks.
    if _begun:
        return
    _begun = True
    try:
        # These import fairseq, which the package itself does not.
        from fairseq_maelm.checkpoint_data import allow_namespaces
        from fairseq_maelm.fairseq_fixes import mend_fairseq

        allow_namespaces()
        mend_fairseq()
        for name in registering_modules():
            importlib.import_module(name)
    except BaseException:
        _begun = False
        raise
