"""Changes to fairseq's own behavior, for the processes that train with the plugin, and the one list of them.

The modules are grouped by effect; ``docs/reference/fairseq_changes.md`` shows the list, and
tests/contracts/test_fairseq_changes.py compares the two. What can be limited to this package's classes is a method of
them instead, or of the base classes in ``batches`` and ``private``. Supported are fairseq 0.12.2 and fairseq-fixed
0.12.3.1, in which all replaced functions are identical.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Patch(NamedTuple):
    """One change."""

    apply: Callable[[], Any]
    why: str  # what users would see without the change
    acts_on: str  # the runs or files whose treatment changes
    upstream: str  # whether fairseq-fixed, the maintained package of fairseq, could take the change


# What is changed -> the change; filled by the decorators of the other modules of this folder.
PATCHES: dict[str, Patch] = {}


def changes(what: str, why: str, acts_on: str = "all runs", upstream: str = "yes") -> Callable[[_Function], _Function]:
    """List the decorated function, which makes the change; for the arguments see ``Patch``."""

    def enter(apply: _Function) -> _Function:
        if what in PATCHES:
            raise ValueError(f"{what} is changed twice: join the two changes")
        PATCHES[what] = Patch(apply, why, acts_on, upstream)
        return apply

    return enter


def replaces(owner: Any, name: str, **reasons: str) -> Callable[[_Function], _Function]:
    """List the decorated function as the replacement of ``owner.name``; for ``reasons`` see ``changes``."""
    path = f"{owner.__module__}.{owner.__name__}" if inspect.isclass(owner) else owner.__name__

    def enter(replacement: _Function) -> _Function:
        apply = functools.partial(_replace, owner, name, replacement)
        changes(f"{path.removeprefix('fairseq.')}.{name}", **reasons)(apply)
        return replacement

    return enter


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(replacement) if is_static else replacement)


@functools.cache
def mend_fairseq() -> None:
    """Apply all changes in this process; a second call has no effect."""
    # The modules import fairseq, which takes seconds, and importing the package must be fast.
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    for patch in PATCHES.values():
        patch.apply()
