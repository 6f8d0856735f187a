"""A fine-tuning task is added by one folder, as ARCHITECTURE.md says: nothing else of the package is edited."""

import shutil
from pathlib import Path

from end_to_end.toy import ROOT, USER_DIR, run

TASK = '''
"""The task of telling topics apart, and its loss."""

from fairseq.criterions import register_criterion
from fairseq.tasks import register_task

from fairseq_maelm.finetuning.sentences.task import (
    SentencesCriterion,
    SentencesCriterionConfig,
    SentencesTask,
    SentencesTaskConfig,
)


@register_task("maelm_topics", dataclass=SentencesTaskConfig)
class TopicsTask(SentencesTask):
    """Classify sentences under another name."""

    name = "maelm_topics"


@register_criterion("maelm_topics", dataclass=SentencesCriterionConfig)
class TopicsCriterion(SentencesCriterion):
    """Cross-entropy of topics."""
'''
USE = """
from pathlib import Path
import fairseq_maelm
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq_maelm.models.checkpoint_reader import loadable_tasks
fairseq_maelm.register()
assert Path(fairseq_maelm.__file__).parent == Path({folder!r})
task, criterion = TASK_REGISTRY["maelm_topics"], CRITERION_REGISTRY["maelm_topics"]
print(task.name, criterion.__name__, "maelm_topics" in loadable_tasks())
"""


def test_a_task_is_added_by_one_folder(tmp_path: Path) -> None:
    """The task and its loss are found by fairseq, and by what opens checkpoints."""
    said = "a folder of `finetuning/` with `task.py`, and nothing else"
    assert said in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = tmp_path / "copy" / "fairseq_maelm"
    shutil.copytree(USER_DIR, package, ignore=shutil.ignore_patterns("__pycache__", "pretrained"))
    added = package / "finetuning" / "topics"
    added.mkdir()
    for name, text in (("__init__", '"""Topics."""\n'), ("task", TASK)):
        (added / f"{name}.py").write_text(text.lstrip(), encoding="utf-8")
    program = ["python", "-c", USE.format(folder=str(package))]
    assert "maelm_topics TopicsCriterion True" in run(program, environment={"PYTHONPATH": str(package.parent)})
