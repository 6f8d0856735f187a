"""Each function of fairseq has at most one replacement, and that is the one which fairseq calls."""

import re
import sys

import pytest

import fairseq_maelm
from fairseq_maelm.fairseq_fixes.replacements import _TABLE, replaces

fairseq_maelm.register()


def test_fairseq_calls_every_replacement() -> None:
    assert len(_TABLE) > 15
    for (owner, name), replacement in _TABLE.items():
        assert getattr(owner, name) is replacement, name
        module = sys.modules[replacement.__globals__["__name__"]]
        assert module.__name__.startswith("fairseq_maelm.fairseq_fixes.")
        assert {"Reason", "Test"} <= set(re.findall(r"^(Reason|Test)s?:", module.__doc__, re.M)), module.__name__


def test_a_second_replacement_is_refused() -> None:
    before = dict(_TABLE)
    owner, name = next(iter(_TABLE))
    with pytest.raises(ValueError, match=rf"{name} is replaced in fairseq_maelm\.\S+ and in \S*test_replacements:"):
        replaces(owner, name)(lambda: None)
    assert before == _TABLE
