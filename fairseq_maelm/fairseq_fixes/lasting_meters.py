"""Keep meters that hold facts about a whole run when it resumes at the start of an epoch.

Reason: fairseq saves all meters in checkpoints, but restores none if the checkpoint was saved at the end of an epoch.
Test: tests/end_to_end/test_adaptation.py.
"""

from typing import Any

from fairseq.logging import metrics

_LASTING: set[str] = set()


def lasting(name: str) -> str:
    """Restore the group of meters with this name, as given to ``metrics.aggregate``, whenever a run resumes."""
    _LASTING.add(name)
    return name


def restore_lasting_meters(extra_state: dict[str, Any]) -> None:
    """Restore these meters from a checkpoint."""
    saved = extra_state.get("metrics") or {}
    metrics.load_state_dict({name: saved[name] for name in sorted(_LASTING) if name in saved})
