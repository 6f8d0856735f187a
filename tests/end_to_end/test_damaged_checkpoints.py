"""A damaged or missing checkpoint_last.pt costs the updates since the save before it, and never the run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.runs import BEST, LAST, LAST_BUT_ONE, assert_equal_end, contents, logged, narrow, refusals
from end_to_end.small import cut, results, updates
from end_to_end.test_distributed import run_ranks
from end_to_end.toy import run

MORE = 18


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(narrow(data, folder, updates=MORE))
    return folder


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(path: Path) -> None:
    """Change one bit of a weight."""
    content = bytearray(path.read_bytes())
    place = content.index(torch.load(path)["model"]["lm_head.dense.weight"].numpy().tobytes())
    content[place + 2] ^= 32
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


DAMAGES: dict[str, tuple[Any, str]] = {
    "truncated": (truncate, f"{LAST} is truncated"),
    "empty": (lambda path: path.write_bytes(b""), f"{LAST} is empty"),
    "one bit": (flip, f"{LAST} is damaged in the record"),
    "missing": (lambda path: path.unlink(), f"there is no {LAST} beside the other checkpoints"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_from_the_newest_whole_checkpoint(data, folder, uninterrupted, damage):
    change, told = DAMAGES[damage]
    change(folder / LAST)
    output = run(narrow(data, folder, updates=MORE))
    assert len(logged(output, told)) == 1
    assert f"training goes on from {folder / LAST_BUT_ONE}, the newest whole checkpoint, after 12 updates" in output
    assert updates(output)[0]["num_updates"] == 13
    assert_equal_end(folder, uninterrupted)


def test_two_ranks_go_on_from_it_too(data, tmp_path):
    ranks = ["--batch-size", 8, "--ddp-backend", "legacy_ddp"]
    run_ranks(narrow(data, tmp_path / "uninterrupted", *ranks), 2, tmp_path)
    run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    truncate(tmp_path / "run" / LAST)
    output = run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    assert len(logged(output, "the newest whole checkpoint, after 12 updates")) == 1
    assert updates(output)[0]["num_updates"] == 13
    assert_equal_end(tmp_path / "run", tmp_path / "uninterrupted")
    # And what one rank refuses, both do.
    for path in (tmp_path / "run").glob("*.pt"):
        truncate(path)
    before = contents(tmp_path / "run")
    with pytest.raises(AssertionError, match=r"fairseq-train: error: .*there is no other checkpoint"):
        run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    assert "error" not in (tmp_path / "rank1.log").read_text(encoding="utf-8")
    assert contents(tmp_path / "run") == before


def test_an_option_refuses_instead(data, folder, tmp_path):
    option = ["--restore-file", folder / LAST]
    flip(folder / LAST)
    before = contents(folder)
    [line] = refusals(run(narrow(data, folder, *option, updates=MORE), check=False))
    assert f"{LAST} is damaged in the record" in line and "put a whole copy in its place" in line
    assert contents(folder) == before
    # The option is no obstacle to the first start.
    run(narrow(data, tmp_path / "new", "--restore-file", tmp_path / "new" / LAST, updates=2))
    assert results(tmp_path / "new" / LAST)["updates"] == 2


def test_without_any_whole_checkpoint_nothing_is_overwritten(data, folder):
    for path in folder.glob("*.pt"):
        truncate(path)
    before = contents(folder)
    [line] = refusals(run(narrow(data, folder), check=False))
    assert f"{LAST} is truncated" in line and "there is no other checkpoint that training could go on from" in line
    assert contents(folder) == before


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_a_bad_file_that_was_named_is_one_line(data, finished, tmp_path, option):
    named = tmp_path / "pretrained.pt"
    shutil.copy(finished / LAST, named)
    flip(named)
    [line] = refusals(run(narrow(data, tmp_path / "new", option, named), check=False))
    assert line.startswith(f"{option} {named} is damaged in the record")
    assert contents(tmp_path / "new") == {}


def test_best_is_kept_from_a_run_that_starts_anew(toy_data, data, tmp_path):
    """With validation: today's way to lose the best model is a missing checkpoint_last.pt."""
    validated = cut(toy_data, tmp_path / "data", 160)
    for name in ("valid.bin", "valid.idx"):
        shutil.copy(toy_data / name, validated)
    command = [
        word for word in narrow(validated, tmp_path / "run", "--no-last-checkpoints") if word != "--disable-validation"
    ]
    run(command)
    assert BEST in contents(tmp_path / "run") and LAST not in contents(tmp_path / "run")
    best = torch.load(tmp_path / "run" / BEST)
    again = run(command)
    assert "the newest whole checkpoint, after" in again
    kept = torch.load(tmp_path / "run" / BEST)
    assert kept["optimizer_history"][-1]["num_updates"] >= best["optimizer_history"][-1]["num_updates"]
    assert kept["extra_state"]["best"] <= best["extra_state"]["best"]
