"""A fine-tuning task is added by one folder, as ARCHITECTURE.md says: nothing else of the package is edited."""

import os
import shutil
from pathlib import Path

import pytest

from end_to_end.toy import COMMANDS, ROOT, USER_DIR, losses, run

# Whether a line of the corpus begins with its most frequent word: a task that an untrained encoder learns in seconds.
TASK = '''
"""The task of telling lines that begin with the most frequent piece."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import MISSING

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.text.dictionary import load_dictionary


@dataclass
class BeginningTaskConfig(FairseqDataclass):
    """Options of the task."""

    data: str = field(default=MISSING, metadata={"help": "folder of `maelm prepare corpus`"})


class BeginningDataset(BatchDataset):
    """The lines of a split."""

    def __init__(self, prefix: str, pad: int) -> None:
        lines = [line.numpy() for line in MMapIndexedDataset(prefix)]
        self.lines = [np.concatenate([[0], line[:30]]) for line in lines if len(line) > 1]
        self.pad = pad
        super().__init__(np.array([len(line) for line in self.lines]), "shuffled", seed=1)
        first = [int(line[1]) for line in self.lines]
        self.target = np.array(first) == np.bincount(first).argmax()

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Make a batch of lines."""
        lengths = self.sizes[indices].astype(np.int64)
        rows = pad_rows([self.lines[int(index)] for index in indices], lengths, self.pad)
        return {
            "ntokens": int(lengths.sum()),
            "net_input": {"src_tokens": torch.from_numpy(rows), "src_lengths": torch.from_numpy(lengths)},
            "target": torch.from_numpy(self.target[indices].astype(np.int64)),
        }


@register_task("maelm_beginning", dataclass=BeginningTaskConfig)
class BeginningTask(EncoderTask):
    """Tell lines that begin with the most frequent piece."""

    name = "maelm_beginning"

    @classmethod
    def setup_task(cls, cfg: Any, **unused: Any) -> "BeginningTask":
        """Load the dictionary and build the task; called by fairseq."""
        return cls(cfg, load_dictionary(cfg.data), longest=64)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and give it a head."""
        model = super().build_model(cfg, from_checkpoint)
        model.register_classification_head("beginning", 2)
        return model

    def load_dataset(self, split: str, **unused: Any) -> None:
        """Open a split."""
        self.datasets[split] = BeginningDataset(f"{self.cfg.data}/{split}", self.dictionary.pad())
'''

CRITERION = '''
"""The loss of the task."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics


@dataclass
class BeginningCriterionConfig(FairseqDataclass):
    """No options."""


@register_criterion("maelm_beginning", dataclass=BeginningCriterionConfig)
class BeginningCriterion(FairseqCriterion):
    """Cross-entropy of the two classes."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        """Compute the loss of a batch."""
        scores, _ = model(**sample["net_input"], features_only=True, classification_head_name="beginning")
        target = sample["target"]
        loss = F.cross_entropy(scores.float(), target, reduction="sum")
        correct = (scores.argmax(dim=-1) == target).sum()
        return loss, len(target), {"loss": loss.detach(), "sample_size": len(target), "ncorrect": correct}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the metrics of all batches."""
        lines = sum(output["sample_size"] for output in logging_outputs)
        metrics.log_scalar("loss", sum(float(output["loss"]) for output in logging_outputs) / lines, lines)
        metrics.log_scalar("accuracy", 100 * sum(int(output["ncorrect"]) for output in logging_outputs) / lines, lines)
'''

USE = """
from fairseq_maelm import MaelmModel
hub = MaelmModel.from_pretrained({folder!r}, "checkpoint_last.pt")
print(hub.task.name, hub.predict("beginning", hub.encode_batch(["The sailor", "Every night"])).shape)
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
    added = package / "finetuning" / "beginning"
    added.mkdir()
    (added / "__init__.py").write_text('"""Lines that begin with the most frequent piece."""\n', encoding="utf-8")
    (added / "task.py").write_text(TASK.lstrip(), encoding="utf-8")
    (added / "criterion.py").write_text(CRITERION.lstrip(), encoding="utf-8")

    words = ["--user-dir", package, "--task", "maelm_beginning", "--criterion", "maelm_beginning", "--arch", "maelm"]
    words += ["--optimizer", "fused_adamw", "--lr", 1e-3, "--batch-size", 16, "--max-epoch", 1, "--log-format", "json"]
    words += ["--finetune-from-model", pretrained, "--save-dir", tmp_path / "saved", "--cpu", "--num-workers", 0]
    output = python([COMMANDS / "fairseq-train", toy_data, *words], package)
    assert str(package) in output
    assert losses(output, "valid", "accuracy")[-1] > 90

    # What opens a checkpoint knows the task too.
    used = python(["-c", USE.format(folder=str(tmp_path / "saved"))], package)
    assert "maelm_beginning torch.Size([2, 2])" in used
    assert not {"beginning"} & set(os.listdir(USER_DIR / "finetuning"))
