"""A corpus that is prepared in chunks so small that documents lie across them."""

from pathlib import Path

import pytest

from fairseq_maelm.corpus import steps

from .texts import DOCUMENTS, write_text


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 3,000 bytes."""
    monkeypatch.setattr(steps, "CHUNK_BYTES", 3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the corpus text.txt."""
    write_text(tmp_path / "text.txt", DOCUMENTS)
    return tmp_path
