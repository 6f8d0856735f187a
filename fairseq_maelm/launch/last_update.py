"""What a run's last update decides: learning rates, and masking rates and lengths that a task schedules.

If a run resumes with another last update, such a schedule jumps to a value that training has left long ago.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY
from omegaconf import II

from fairseq_maelm.data.schedule import Schedule

# fairseq's configuration as plain data: section -> option -> value.
Sections = Mapping[str, Mapping[str, Any]]

_LAST = "max_update"
_NAMES = ("learning rate", "masking rate", "share of a sequence")
# The number of updates, spread over a run, at which schedules are compared.
_COMPARED = 1000


class _Rate(FairseqOptimizer):
    """What a schedule needs of an optimizer."""

    def __init__(self) -> None:
        self.rate = 0.0

    def get_lr(self) -> float:
        return self.rate

    def set_lr(self, lr: float) -> None:
        self.rate = lr


def ends_of(sections: Sections) -> dict[str, float]:
    """Return --max-update, and the options of the learning-rate schedule that are equal to it by default."""
    section = sections.get("lr_scheduler") or {}
    ends = {_LAST: sections["optimization"].get(_LAST), **{name: section.get(name) for name in _end_options(section)}}
    return {name: float(end or 0) for name, end in ends.items()}


def _end_options(section: Mapping[str, Any]) -> list[str]:
    declared = LR_SCHEDULER_DATACLASS_REGISTRY.get(section.get("_name"))
    return [each.name for each in fields(declared) if each.default == II(f"optimization.{_LAST}")] if declared else []


def jump(sections: Sections, before: Sections, updates: int) -> str | None:
    """Describe what would jump if a run of ``before`` resumed after ``updates`` updates; None if nothing would.

    Only the last updates of the two configurations are compared, not their other options.
    """
    own, ends = ends_of(sections), _other_ends(sections, before)
    for name, new, old in _differences(sections, ends, [max(updates - 1, 0)]):
        options = [f"{each.replace('_', '-')} {own[each]:g} instead of {ends[each]:g}" for each in own]
        changed = [text for text, each in zip(options, own, strict=True) if own[each] != ends[each]]
        return f"with {', '.join(changed)}, its {name} would jump from {old:g} to {new:g}"
    return None


def depends_on_last_update(sections: Sections, before: Sections) -> bool:
    """Return whether the schedules of ``sections`` would be others with the last update of ``before``."""
    ends = _other_ends(sections, before)
    return bool(_differences(sections, ends, _spread([*ends.values(), *ends_of(sections).values()])))


def has_ended(sections: Sections, updates: int) -> bool:
    """Return whether a schedule has ended after ``updates`` updates: with a later end, it would be another one."""
    later = {name: 2 * end if end <= updates else end for name, end in ends_of(sections).items()}
    return bool(_differences(sections, later, _spread(later.values())))


def _other_ends(sections: Sections, before: Sections) -> dict[str, float]:
    other = ends_of(before)
    return {name: other.get(name, end) for name, end in ends_of(sections).items()}


def _spread(ends: Iterable[float]) -> range:
    last = int(max(ends))
    return range(0, last, max(1, last // _COMPARED))


def _differences(
    sections: Sections, ends: Mapping[str, float], updates: Iterable[int]
) -> list[tuple[str, float, float]]:
    """Return name, value and value with other ends, for each scheduled value that differs at one of the updates."""
    own = ends_of(sections)
    if own == ends:
        return []
    found = zip(_values(sections, own, updates), _values(sections, ends, updates), strict=True)
    triples = (triple for values in found for triple in zip(_NAMES, *values, strict=True))
    return [(name, first, second) for name, first, second in triples if first != second]


def _values(sections: Sections, ends: Mapping[str, float], updates: Iterable[int]) -> list[tuple[float, float, float]]:
    """Return the values of _NAMES for the update that follows each number of updates."""
    task, last = sections.get("task") or {}, int(ends[_LAST])
    rate = task.get("mask_prob") or 0.0
    masking = Schedule(rate, task.get("mask_prob_end") or rate, task.get("half_length_until") or 0.0)
    rates = [masking.mask_prob_at(made, last) if last else rate for made in updates]
    shares = [0.5 if masking.is_short_at(made, last) else 1.0 for made in updates]
    return list(zip(_learning_rates(sections.get("lr_scheduler") or {}, ends, updates), rates, shares, strict=True))


def _learning_rates(section: Mapping[str, Any], ends: Mapping[str, float], updates: Iterable[int]) -> list[float]:
    """Return the rates after each number of updates; zeros for schedules without an end."""
    own = {name: ends[name] for name in _end_options(section)}
    if not own:
        return [0.0 for _ in updates]
    try:
        schedule = LR_SCHEDULER_REGISTRY[section["_name"]](SimpleNamespace(**{**section, **own}), _Rate())
        return [float(schedule.step_update(made)) for made in updates]
    except (ArithmeticError, AssertionError, ValueError):  # too few updates for its phases: like no other schedule
        return [math.nan for _ in updates]
