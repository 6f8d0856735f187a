"""A fine-tuning task is added by one folder, as ARCHITECTURE.md and the guide say: nothing else is edited."""

import re
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from end_to_end.process_server import programs
from end_to_end.toy import ROOT, run

GUIDE = ROOT / "docs" / "guides" / "new_task.md"
LOAD = """
from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.reader import loadable_tasks
assert "maelm_topics" in loadable_tasks()
print(MaelmModel.from_pretrained("topics").labels.names)
"""


@pytest.mark.slow
def test_the_template_is_a_task_of_all_commands(tmp_path: Path) -> None:
    """The guide's commands run in a copy of the package: training learns the topics, and the prediction is right."""
    said = "a folder in `finetuning/`, and nothing else"
    assert said in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = re.search(r"(?:^ {4}.*\n)+", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert block is not None
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fairseq_maelm", tmp_path / "fairseq_maelm", ignore=ignored)
    shutil.copytree(ROOT / "examples" / "new_task", tmp_path / "examples" / "new_task", ignore=ignored)
    commands = dedent(block[0]).replace("maelm finetune", "maelm finetune --gpus 0").replace("seq 30", "seq 8")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": f"{programs()}:/usr/bin:/bin"}
    output = run(["bash", "-euc", commands], cwd=tmp_path, environment=environment)
    header, row = (line.split("\t") for line in output.splitlines()[-2:])
    assert header == ["labels", "P(music)", "P(sport)", "text"] and (row[0], row[3]) == ("sport", "a goal")
    log = (tmp_path / "topics" / "training.log").read_text(encoding="utf-8")
    assert re.findall(r'"valid_micro_f1": "([\d.]+)"', log)[-1] == "100"
    assert run(["python", "-c", LOAD], cwd=tmp_path, environment=environment).strip() == "('music', 'sport')"
