"""A fine-tuning task is added by one folder, as ARCHITECTURE.md says: nothing else of the package is edited."""

import os
import shutil
from pathlib import Path

import pytest

from end_to_end.test_finetuning import prepare_task, topic_of_a_sentence
from end_to_end.toy import COMMANDS, ROOT, USER_DIR, losses, run

TASK = '''
"""The task of telling topics apart."""

from fairseq.tasks import register_task

from fairseq_maelm.finetuning.sentences.task import SentencesTask, SentencesTaskConfig


@register_task("maelm_topics", dataclass=SentencesTaskConfig)
class TopicsTask(SentencesTask):
    """Classify sentences under another name."""

    name = "maelm_topics"
'''
CRITERION = '''
"""The loss of the task."""

from fairseq.criterions import register_criterion

from fairseq_maelm.finetuning.sentences.criterion import SentencesCriterion, SentencesCriterionConfig


@register_criterion("maelm_topics", dataclass=SentencesCriterionConfig)
class TopicsCriterion(SentencesCriterion):
    """Cross-entropy of topics."""
'''
USE = """
from fairseq_maelm import MaelmModel
hub = MaelmModel.from_pretrained({folder!r}, "checkpoint_last.pt")
print(hub.task.name, len(hub.classify(["The sailor", "Every night"])))
"""


def python(words: list[object], package: Path) -> str:
    """Run a program in a separate process, which imports the package from another folder."""
    return run(["python", *words], environment={"PYTHONPATH": str(package.parent)})


@pytest.mark.slow
def test_a_task_is_added_by_one_folder(toy_data: Path, pretrained: Path, tmp_path: Path) -> None:
    assert (
        "a folder of `finetuning/` with `task.py` and `criterion.py`, and nothing else"
        in (ROOT / "ARCHITECTURE.md").read_text()
    )
    package = tmp_path / "copy" / "fairseq_maelm"
    shutil.copytree(USER_DIR, package, ignore=shutil.ignore_patterns("__pycache__"))
    added = package / "finetuning" / "topics"
    added.mkdir()
    (added / "__init__.py").write_text('"""Topics."""\n', encoding="utf-8")
    (added / "task.py").write_text(TASK.lstrip(), encoding="utf-8")
    (added / "criterion.py").write_text(CRITERION.lstrip(), encoding="utf-8")

    task = prepare_task(tmp_path, toy_data, topic_of_a_sentence)
    words = ["--user-dir", package, "--task", "maelm_topics", "--criterion", "maelm_topics", "--arch", "maelm"]
    words += ["--optimizer", "fused_adamw", "--lr", 1e-3, "--batch-size", 16, "--max-epoch", 1, "--log-format", "json"]
    words += ["--finetune-from-model", pretrained, "--save-dir", tmp_path / "saved", "--cpu", "--num-workers", 0]
    output = python([COMMANDS / "fairseq-train", task, *words], package)
    assert str(package) in output and len(losses(output, "valid", "accuracy")) == 1

    # What opens a checkpoint knows the task too.
    used = python(["-c", USE.format(folder=str(tmp_path / "saved"))], package)
    assert "maelm_topics 2" in used
    assert "topics" not in os.listdir(USER_DIR / "finetuning")
