"""Validation measures every example of a split, even if their number is not a multiple of 8 or of the ranks.

fairseq drops the last batch if its size is not a multiple of --required-batch-size-multiple, which is 8 by default.
"""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.test_distributed import run_ranks
from end_to_end.test_finetuning import hub_logits, table, topic_of_a_sentence
from end_to_end.toy import TINY_TRAINING, run, train_log
from fairseq_maelm import MaelmModel

pytestmark = pytest.mark.slow

# As many as the validation set of WNLI has.
EXAMPLES = 71
COMMON = ["--cpu", "--num-workers", 0, "--log-format", "json"]
# fairseq's own task, and this package's.
TASKS: dict[str, list[Any]] = {
    "sentence_prediction": ["--num-classes", 4, "--init-token", 0, "--separator-token", 2, "--max-positions", 64],
    "maelm_sentences": [],
}


def options(name: str) -> list[Any]:
    """The options of a task and its criterion."""
    return ["--task", name, "--criterion", name, *TASKS[name], *COMMON]


@pytest.fixture(scope="module")
def task(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topics")
    generator = random.Random(5)
    for split, examples in (("train", 40), ("valid", EXAMPLES)):
        lines = ["\t".join(topic_of_a_sentence(generator)) for _ in range(examples)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tables = ["--train", folder / "train.tsv", "--valid", folder / "valid.tsv"]
    run(["maelm", "prepare", "sentences", "--vocabulary", toy_data, "--output", folder / "task", *tables])
    return folder / "task"


def training(task: Path, name: str, folder: Path) -> list[Any]:
    """Two updates of a classifier with random weights, and a validation."""
    words: list[Any] = ["fairseq-train", task, *options(name), "--arch", "maelm_tiny", "--max-positions", 64]
    words += ["--batch-size", 20, "--optimizer", "fused_adamw", "--lr", 1e-3, "--seed", 1, "--max-update", 2]
    return [*words, "--no-epoch-checkpoints", "--save-dir", folder]


def metrics(output: str) -> tuple[float, float]:
    """Loss and accuracy of the one validation."""
    (logged,) = (entry for entry in train_log(output) if entry["split"] == "valid")
    return logged["valid_loss"], logged["valid_accuracy"]


def metrics_of_all(checkpoint: Path, task: Path) -> tuple[float, float]:
    """Loss in bits and accuracy in percent of every row of the table, scored one by one."""
    hub = MaelmModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(task))
    rows = table(task)
    assert len(rows) == EXAMPLES
    labels = hub.task.label_dictionary
    targets = torch.tensor([labels.index(row[-1]) - labels.nspecial for row in rows])
    logits = hub_logits(hub, rows)
    loss = float(torch.nn.functional.cross_entropy(logits, targets)) / math.log(2)
    return loss, 100 * float((logits.argmax(dim=1) == targets).float().mean())


@pytest.mark.parametrize("name", TASKS)
def test_sentences(name, task, tmp_path):
    trained = metrics(run(training(task, name, tmp_path)))
    checkpoint = tmp_path / "checkpoint_last.pt"
    expected = metrics_of_all(checkpoint, task)
    command = ["fairseq-validate", task, "--path", checkpoint, *options(name), "--batch-size", 32]
    validated = metrics(run(command))
    # fairseq's own criterion rounds the accuracy to one digit.
    assert trained == pytest.approx(expected, abs=0.06, rel=0) and trained[0] == pytest.approx(expected[0], abs=6e-4)
    assert validated == pytest.approx(trained, abs=1e-3)


def test_pretraining_on_one_rank_and_on_two_of_which_one_has_no_batch(toy_data, tmp_path):
    run(["fairseq-train", toy_data, *TINY_TRAINING, "--disable-validation", "--max-update", 1, "--save-dir", tmp_path])
    command = ["fairseq-validate", toy_data, "--path", tmp_path / "checkpoint_last.pt", "--task", "maelm", "--cpu"]
    command += ["--batch-size", 1000, "--required-batch-size-multiple", 1, "--num-workers", 0, "--log-format", "json"]
    assert metrics(run(command)) == metrics(run_ranks(command, 2, tmp_path))
