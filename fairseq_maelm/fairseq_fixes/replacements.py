"""The one table of fairseq's functions that this package replaces."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# (class or module, name) -> replacement.
_TABLE: dict[tuple[Any, str], Callable[..., Any]] = {}


def replaces(owner: Any, name: str) -> Callable[[_Function], _Function]:
    """Register the decorated function in the table as the replacement for ``owner.name``.

    Raises:
        ValueError: ``owner.name`` already has a replacement.
    """

    def enter(replacement: _Function) -> _Function:
        other = _TABLE.setdefault((owner, name), replacement)
        if other is not replacement:
            first, second = (function.__globals__["__name__"] for function in (other, replacement))
            raise ValueError(f"{owner.__name__}.{name} is replaced in {first} and in {second}: join the two")
        return replacement

    return enter


def replace_all() -> None:
    """Apply all replacements in the table; a second call has no effect."""
    for (owner, name), replacement in _TABLE.items():
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)
