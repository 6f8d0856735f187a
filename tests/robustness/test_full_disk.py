"""Files that cannot grow: the command says so in one line, nothing looks whole, and the next run ends well."""

import shutil
from types import SimpleNamespace

import pytest
from support import files_of_at_most

from fairseq_maelm.fairseq_fixes import saving
from robustness.commands import GOOD
from robustness.world import Answer, World

COMMANDS = {command: line for command, line in GOOD.items() if "{new}" in line and command != "sweep"}
COMMANDS |= {command: f"{GOOD[command]} --output {{new}}" for command in ("predict", "evaluate squad")}
# Data workers exchange batches through files, and cannot start if these cannot grow.
for _command in ("pretrain", "finetune"):
    COMMANDS[_command] += f"{'' if ' -- ' in COMMANDS[_command] else ' --'} --num-workers 0"
# The largest file of these is smaller than the larger limit.
SMALL = ("evaluate squad", "predict", "score")
# What is whole in the folder of these is so file by file.
BY_FILE = ("pretrain", "finetune", "analyze", "prepare glue")
SIZES = [("prepare corpus", 40), *((command, 40 if command in SMALL else 5000) for command in COMMANDS)]


@pytest.mark.parametrize(("command", "size"), SIZES)
def test_a_full_disk(command: str, size: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.remove_new()
    monkeypatch.setattr(saving, "_PAUSE_SECONDS", 0)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
        with files_of_at_most(size), pytest.raises(Answer) as caught:
            world.run(COMMANDS[command])
    last = caught.value.error.splitlines()[-1]
    assert last.startswith(f"maelm {command}: error: ") and "Traceback" not in caught.value.error
    assert "[Errno" not in last and str(world.folder) in last
    assert "File too large" in last or "No space left on device" in last, last
    assert command in BY_FILE or not world.path("new").exists()
    assert not list(world.folder.rglob("checkpoint*.pt")) or command not in BY_FILE
    world.run(COMMANDS[command])
    left = [path.name for path in world.folder.rglob("*") if path.name.endswith((".partial", ".unfinished"))]
    world.remove_new()
    assert left == []
