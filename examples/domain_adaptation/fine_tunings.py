"""The fine-tunings of the encoders from before and after, each followed by its score on test data, as jobs."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from study import visible

from fairseq_maelm.sweep.jobs import Job, Process, read_json

EXAMPLES = Path(__file__).resolve().parents[1]
# Not by name: the command may not be on the path of whoever calls this interpreter.
MAELM = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(EXAMPLES.parent)!r}); "
         "from fairseq_maelm.cli import main; main()"]  # fmt: skip


@dataclass(frozen=True)
class FineTuning:
    """A task, an encoder and a seed.

    Attributes:
        output: folder of the study.
        name: of the task.
        kind: of its files, "jsonl" to classify sentences or "conll" to label words.
        task: the task's folder in the encoder's vocabulary.
        model: "before" or "after".
        checkpoint: of that encoder.
        seed: of the head's weights, the order of the examples, and dropout.
        learning_rate: its peak.
        epochs: passes over the training data.
        remove: the checkpoints once the score is there; an interrupted fine-tuning then begins anew.
    """

    output: Path
    name: str
    kind: str
    task: Path
    model: str
    checkpoint: Path
    seed: int
    learning_rate: str
    epochs: int
    remove: bool

    @property
    def _file(self) -> str:
        return f"{self.name}_{self.model}_{self.seed}"

    @property
    def save_dir(self) -> Path:
        """The folder of its checkpoints."""
        return self.output / "runs" / self._file

    @property
    def marker(self) -> Path:
        """The file of its score."""
        return self.output / "scores" / f"{self._file}.json"

    def job(self) -> Job:
        """The fine-tuning, followed by the score."""
        title = f"{self.name}, {self.model}, seed {self.seed}"
        metrics = self.save_dir / "metrics.json"
        score = Job(
            f"{title}, test", self.marker, self._scoring, lambda log: read_json(metrics) or {}, ended=self._tidy
        )
        return Job(
            title,
            # Not with_suffix: a task's name may have a dot.
            self.output / "runs" / f"{self._file}.json",
            self._training,
            lambda log: {},
            resumes=not self.remove,
            followers=[score],
        )

    def _training(self, slot: str) -> Process:
        recipe = EXAMPLES / ("finetuning" if self.kind == "jsonl" else "tagging") / "finetune.sh"
        words = ["bash", recipe, self.task, self.checkpoint, self.save_dir, "--num-workers", 0]
        words += ["--no-last-checkpoints"] if self.remove else []
        own = {"LEARNING_RATE": self.learning_rate, "EPOCHS": self.epochs, "BATCH_SIZE": 16, "SEED": self.seed}
        return _process(words, {**own, "GPUS": 1} if slot else own, slot)

    def _scoring(self, slot: str) -> Process:
        best, metrics = self.save_dir / "checkpoint_best.pt", self.save_dir / "metrics.json"
        tables = self.output / "tables" / self.name
        if self.kind == "jsonl":
            script = EXAMPLES / "domain_adaptation" / "score_sentences.py"
            return _process([sys.executable, script, best, self.task, tables / "test.tsv", metrics], {}, slot)
        tagged = self.marker.with_suffix(".conll")
        tagged.unlink(missing_ok=True)
        words = [*MAELM, "tag", tables / "test.conll", "--checkpoint", best, "--task", self.task]
        return _process([*words, "--output", tagged, "--score", metrics], {}, slot)

    def _tidy(self) -> None:
        if self.remove and self.score() is not None:
            shutil.rmtree(self.save_dir, ignore_errors=True)

    def score(self) -> float | None:
        """Percent, macro F1 of sentences or F1 of entities; None where there is no score yet."""
        return (read_json(self.marker) or {}).get("macro F1" if self.kind == "jsonl" else "f1")


def _process(words: list[Any], variables: dict[str, Any], slot: str) -> Process:
    named = {name: str(value) for name, value in variables.items()}
    return Process(list(map(str, words)), {**named, **visible(slot)})
