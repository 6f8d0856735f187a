"""Keep numpy's types out of checkpoints, which could otherwise not be loaded again.

Reason: some metrics of fairseq are numbers or arrays of numpy, such as the correlations of ``sentence_prediction`` and
the n-gram counts of ``translation``. fairseq saves them as best result and in meters, but since torch 2.6 a checkpoint
with them is not loaded: no run could continue from it, and no program could use it.
Test: tests/fairseq_fixes/test_numpy_values.py.
"""

import copy
from typing import Any

import numpy as np

# The parts of a checkpoint with metrics; learning-rate schedules in the history may store the best one.
_PARTS = ("extra_state", "optimizer_history")


def without_numpy(state: Any) -> Any:
    """Return a checkpoint's content with Python's numbers instead of numpy's, and without meters of arrays."""
    if not isinstance(state, dict):
        return state
    state = {**state, **{name: _plain(state[name]) for name in _PARTS if name in state}}
    saved = (state.get("extra_state") or {}).get("metrics")
    if saved:
        # Such meters are of validation, so a resumed run does not miss them.
        plain = {group: [meter for meter in meters if not _has_array(meter)] for group, meters in saved.items()}
        state["extra_state"]["metrics"] = plain
    return state


def _plain(value: Any) -> Any:
    """Copy nested dicts, lists and tuples with numpy's numbers converted; tensors and arrays are not copied."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attributes of a model's state dict
        copied.update({name: _plain(each) for name, each in value.items()})
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _has_array(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_array, value)) if isinstance(value, (list, tuple)) else isinstance(value, np.ndarray)
