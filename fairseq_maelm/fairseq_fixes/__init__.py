"""Changes to fairseq's own behavior, for the processes that train with the plugin.

``patches`` has the list of all changes; the modules are grouped by effect. What can be limited to this package's
classes is a method of them instead, or of the base classes in ``batches`` and ``private``. Supported are fairseq 0.12.2
and fairseq-fixed 0.12.3.1, in which all replaced functions are identical.
"""

import functools
import importlib
import pkgutil


@functools.cache
def mend_fairseq() -> None:
    """Apply all changes in this process; a second call has no effect."""
    # The modules import fairseq, which takes seconds, and importing the package must be fast.
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    from fairseq_maelm.fairseq_fixes.patches import PATCHES

    for patch in PATCHES.values():
        patch.apply()
