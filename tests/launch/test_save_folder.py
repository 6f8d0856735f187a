"""The choice of the file from which a run starts; tests/end_to_end/test_save_folder.py shows it through the command."""

import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_maelm.fairseq_fixes.saving import save_whole
from fairseq_maelm.launch.save_folder import choose_start, link_equal_checkpoints

CRITERION = "MaelmCriterion"


def save(path: Path, updates: int, criterion: str = CRITERION, **changes: Any) -> Path:
    """Write a small checkpoint as fairseq's trainer does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": {"weight": torch.randn(300)},
        "last_optimizer_state": {"step": updates},
        "optimizer_history": [{"criterion_name": criterion, "num_updates": updates, "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **changes,
    }
    torch.save(state, path)
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def start(folder: Path, suffix: str = "", **changes: Any) -> tuple[Any, ...]:
    defaults = {"restore_file": "checkpoint_last.pt", "finetune_from_model": None, "no_save": False}
    options = SimpleNamespace(save_dir=str(folder), **{**defaults, **changes})
    return tuple(choose_start(options, suffix, CRITERION))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the folder of a run with checkpoints of 5, 10 (the best) and 15 updates."""
    for name, updates in (("1_5", 5), ("best", 10), ("2", 15), ("last", 15)):
        save(tmp_path / "run" / f"checkpoint{'' if name.isdigit() else '_'}{name}.pt", updates)
    return tmp_path / "run"


def test_a_new_folder_starts_a_run(tmp_path):
    assert start(tmp_path / "new") == ("checkpoint_last.pt", False, True)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "checkpoint_average.pt").write_text("x")
    assert start(tmp_path / "some") == ("checkpoint_last.pt", False, True)


DAMAGES = {
    "flipped": (flip, "checkpoint_last.pt is damaged in the record 'checkpoint_last/data/"),
    "another archive": (lambda path: torch.save({"a": 1}, path), "checkpoint_last.pt is not a checkpoint of fairseq"),
    "missing": (lambda path: path.unlink(), "there is no checkpoint_last.pt although "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_checkpoint_takes_its_place(folder, caplog, damage):
    change, told = DAMAGES[damage]
    change(folder / "checkpoint_last.pt")
    with caplog.at_level(logging.WARNING):
        assert start(folder) == (str(folder / "checkpoint2.pt"), True, False)
    assert len(caplog.records) == 1 and "\n" not in caplog.text.strip()
    assert told in caplog.text
    assert f"training continues from the newest intact checkpoint, {folder}/checkpoint2.pt (15 updates)" in caplog.text


def test_checkpoints_from_before_a_reset_come_last(folder):
    """After --reset-optimizer the updates begin at 0 again, and fairseq's history goes on."""
    history = [{"criterion_name": CRITERION, "num_updates": updates, "lr_scheduler_state": {}} for updates in (15, 3)]
    (folder / "checkpoint_last.pt").unlink()
    save(folder / "checkpoint_best.pt", 3, optimizer_history=history)
    assert start(folder)[0] == str(folder / "checkpoint_best.pt")


def test_what_cannot_be_continued_is_passed_over(folder, caplog):
    (folder / "checkpoint_last.pt").unlink()
    flip(folder / "checkpoint2.pt")
    truncate(folder / "checkpoint_1_5.pt")
    save(folder / "checkpoint_9_90.pt", 90, last_optimizer_state=None)
    save(folder / "checkpoint_8_80.pt", 80, criterion="SquadCriterion")
    save(folder / "checkpoint7.pt", 70, extra_state={})
    # Names that fairseq-train does not write: a crash, an average, a copy.
    for name in ("crash.pt", "checkpoint_average.pt", "checkpoint_last.pt.bak"):
        save(folder / name, 60)
    assert start(folder)[0] == str(folder / "checkpoint_best.pt")
    for told in (
        "(10 updates); checkpoint2.pt is damaged in the record",
        "checkpoint7.pt has no position in the data",
        "checkpoint_8_80.pt is of another run, trained with SquadCriterion",
        "checkpoint_9_90.pt has no optimizer state",
        "checkpoint_1_5.pt is truncated",
    ):
        assert told in caplog.text


def test_without_any_whole_one_the_run_is_refused(folder):
    for path in folder.iterdir():
        truncate(path)
    with pytest.raises(
        ValueError, match=r"checkpoint_last\.pt is truncated.* cannot continue from any other checkpoint .*start again"
    ) as refusal:
        start(folder)
    assert "\n" not in str(refusal.value)


def test_ranks_with_files_of_their_own(folder, caplog):
    for name, updates in (("_1_5", 5), ("2", 15), ("_last", 15)):
        save(folder / f"checkpoint{name}-shard0.pt", updates)
    assert start(folder, "-shard0")[0] == "checkpoint_last.pt"
    truncate(folder / "checkpoint_last-shard0.pt")
    # fairseq adds the suffix of each rank.
    assert start(folder, "-shard0")[0] == str(folder / "checkpoint2.pt")


# Files that the user names


def test_the_last_checkpoint_by_its_path_is_this_one_or_none(folder, tmp_path):
    last = str(folder / "checkpoint_last.pt")
    assert start(folder, restore_file=last) == ("checkpoint_last.pt", True, False)
    # The same command starts a run.
    assert start(tmp_path / "new", restore_file=str(tmp_path / "new" / "checkpoint_last.pt"))[2]
    flip(Path(last))
    with pytest.raises(ValueError, match=r"is damaged in .* --restore-file names this file: replace it with an"):
        start(folder, restore_file=last)
    Path(last).unlink()
    with pytest.raises(ValueError, match=r"there is no checkpoint_last\.pt .* --restore-file names this file"):
        start(folder, restore_file=last)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"last_optimizer_state": [1]}, "last_optimizer_state is [1]"),
        ({"extra_state": {"metrics": "many"}}, "metrics is 'many'"),
        ({"optimizer_history": ["first"]}, "last update is 'first'"),
        ({"optimizer_history": [{"lr_scheduler_state": 3}]}, "lr_scheduler_state is 3"),
    ],
)
def test_parts_of_another_type_are_refused(tmp_path, changes, told):
    """Other values are in tests/robustness/cases.py."""
    named = save(tmp_path / "pretrained" / "checkpoint_best.pt", 100, **changes)
    with pytest.raises(ValueError, match=rf"{re.escape(str(named))} cannot be continued: its {re.escape(told)}, which"):
        start(tmp_path / "new", restore_file=str(named))


@pytest.mark.parametrize("option", ["restore_file", "finetune_from_model"])
def test_a_bad_file_that_was_named_is_refused(tmp_path, option):
    """Other files are refused in tests/robustness/cases.py."""
    named = save(tmp_path / "pretrained" / "checkpoint_best.pt", 100)
    assert start(tmp_path / "new", **{option: str(named)})[1] is False
    for damage, told in ((flip, "is damaged in the record"), (lambda path: path.unlink(), "does not exist")):
        damage(named)
        with pytest.raises(ValueError, match=f"^--{option.replace('_', '-')} {named} {told}"):
            start(tmp_path / "new", **{option: str(named)})


def test_a_run_from_elsewhere_is_kept_out_of_a_folder_with_checkpoints(folder, tmp_path):
    named = str(save(tmp_path / "pretrained" / "checkpoint_best.pt", 100))
    with pytest.raises(ValueError, match=r"holds checkpoints of another run \(.*and 1 more\).*name another --save-dir"):
        start(folder, restore_file=named)
    assert start(folder, restore_file=named, no_save=True) == (named, False, False)
    assert start(tmp_path / "new", restore_file=named) == (named, False, False)


def test_runs_that_go_on_or_leave_the_folder_alone(folder, tmp_path):
    pretrained = str(save(tmp_path / "pretrained" / "checkpoint_best.pt", 100))
    older = str(folder / "checkpoint_1_5.pt")
    assert start(folder) == start(folder, finetune_from_model=pretrained) == ("checkpoint_last.pt", True, False)
    assert start(folder, restore_file=older) == (older, True, False)
    (folder / "checkpoint_last.pt").unlink()
    assert start(folder, no_save=True) == ("checkpoint_last.pt", False, True), "other checkpoints do not matter"
    assert start(folder, finetune_from_model=pretrained) == (str(folder / "checkpoint2.pt"), True, False)


def test_equal_checkpoints_are_stored_once_and_stay_apart(folder: Path) -> None:
    best, last = folder / "checkpoint_best.pt", folder / "checkpoint_last.pt"
    shutil.copy(last, best)
    files = {*folder.iterdir()}
    link_equal_checkpoints(folder)
    assert best.samefile(last) and {*folder.iterdir()} == files
    # The next save of either one leaves the other as it was.
    before = best.read_bytes()
    save_whole({"model": {}}, str(last))
    assert best.read_bytes() == before != last.read_bytes()
    link_equal_checkpoints(folder)
    assert not best.samefile(last)
