"""Optional libraries."""

from pathlib import Path

import pytest

from fairseq_maelm.files.optional_imports import import_transformers


@pytest.mark.parametrize("problem", ["ImportError", "OSError", "RuntimeError"])
def test_a_broken_torchaudio_is_named(problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchaudio for another torch raises one of these."""
    (tmp_path / "torchaudio.py").write_text(f"raise {problem}('undefined symbol')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="transformers fails with it: pip uninstall torchaudio"):
        import_transformers()
