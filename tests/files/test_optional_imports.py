"""Optional libraries."""

import importlib
import sys
from functools import cache
from types import ModuleType

import pytest

from fairseq_maelm.files.optional_imports import import_transformers


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("problem", [ImportError, OSError, RuntimeError])
def test_a_useless_torchaudio_is_hidden_from_every_version(
    version: int, problem: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 5 remembers torchaudio in a cache, version 4 in a variable of a module.

    A torchaudio for another torch raises an OSError, or a RuntimeError that says so.
    """

    def fail(name: str) -> ModuleType:
        raise problem(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    transformers, utils, imports = (ModuleType(name) for name in ("transformers", "utils", "import_utils"))
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "torchaudio", ModuleType("torchaudio"))
    transformers.utils, utils.import_utils = utils, imports  # type: ignore[attr-defined]
    imports._torchaudio_available = True  # type: ignore[attr-defined]
    found = [True]
    utils.is_torchaudio_available = (  # type: ignore[attr-defined]
        (lambda: imports._torchaudio_available) if version == 4 else cache(lambda: found[0])
    )
    assert utils.is_torchaudio_available() is True
    found[0] = False
    assert import_transformers() is transformers
    assert utils.is_torchaudio_available() is False
