"""Changes to fairseq's own behavior, for every task that is trained with the plugin.

Each change has a module, whose docstring gives the reason and a test that fails without the change. The table in
``replacements`` lists the replaced functions. Supported are fairseq 0.12.2 and fairseq-fixed 0.12.3.1, in which all
replaced functions are identical.
"""

import functools
import importlib
import pkgutil


@functools.cache
def mend_fairseq() -> None:
    """Apply all changes in this process; a second call has no effect."""
    # These import fairseq, which takes seconds, and importing the package must be fast.
    from fairseq_maelm.checkpoints.plain_data import allow_namespaces

    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    from fairseq_maelm.fairseq_fixes.forked_processes import keep_inherited_garbage
    from fairseq_maelm.fairseq_fixes.log_noise import leave_out_noise
    from fairseq_maelm.fairseq_fixes.replacements import replace_all

    allow_namespaces()
    replace_all()
    leave_out_noise()
    keep_inherited_garbage()
