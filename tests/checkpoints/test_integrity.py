"""Each damage of a checkpoint file is found, or is harmless."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm.checkpoints.integrity import find_damage

STATE = {"model": {"weight": torch.arange(40.0), "identity": torch.tensor([7, 2])}, "extra_state": {"epoch": 3}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


def is_equal(loaded: Any) -> bool:
    same = all(torch.equal(loaded["model"][name], weight) for name, weight in STATE["model"].items())
    return same and loaded["extra_state"] == STATE["extra_state"]


def is_harmless(path: Path) -> bool:
    """Tell whether torch loads the saved content, or raises an error."""
    try:
        return is_equal(torch.load(path, weights_only=True, mmap=True))
    except Exception:
        return True


def test_no_flipped_bit_goes_unseen(path):
    """Each byte of a file with one of its bits flipped: data, names, tables, padding."""
    whole = path.read_bytes()
    count = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        found = find_damage(path) is not None
        count += found
        assert found or is_harmless(path), f"byte {place} of {len(whole)}"
    # The other bytes are padding, times and the like.
    assert count > 600


def test_no_cut_goes_unseen(path):
    whole = path.read_bytes()
    for length in [*range(1, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        found = find_damage(path)
        assert found is not None or length < 4, length
        assert length < 4 or found.startswith(("is truncated", "is damaged")), found


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
    ],
    ids=["empty", "missing", "folder"],
)
def test_what_is_no_file_with_content(path, damage, told):
    damage(path)
    assert find_damage(path) == told


@pytest.mark.parametrize("new", [True, False], ids=["whole", "without checksums"])
def test_whole_files_and_those_without_checksums_are_left_to_loading(path, new):
    torch.save(STATE, path, _use_new_zipfile_serialization=new)
    assert find_damage(path) is None
    assert is_equal(torch.load(path))


def test_compressed_records_are_told_before_they_are_read(path, tmp_path):
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small:
        for entry in whole.infolist():
            small.writestr(entry.filename, whole.read(entry))
    assert find_damage(tmp_path / "small.pt").startswith("holds the compressed record 'checkpoint/")
