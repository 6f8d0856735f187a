"""Continued pretraining as Hugging Face's run_mlm.py does it: transformers' Trainer on packed blocks with [MASK]."""

import queue
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training_step.clocks import Stages
from training_step.fairseq_data import PREPARED
from training_step.settings import Settings

_ENDLESS = 10**6


class RunMlmSession:
    """See ``training_step.session.Session``. The Trainer runs in a thread, which waits for each batch.

    Args:
        settings: of the measurement.
        data: the folder ``data`` of ``random_encoder.py``.
    """

    def __init__(self, settings: Settings, data: str) -> None:
        self.settings = settings
        self.stages = Stages(settings.device)
        self._folder = Path(data).parent
        self._wanted: queue.Queue[Any] = queue.Queue()
        self._done: queue.Queue[bool] = queue.Queue()

    def build(self) -> dict[str, Any]:
        """Make model, blocks and Trainer, and start it."""
        from fairseq_maelm.files.optional_imports import import_transformers

        transformers = import_transformers()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder / "source")
        model = transformers.AutoModelForMaskedLM.from_pretrained(self._folder / "source")
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=self.settings.masking)
        stock = self._trainer(transformers, model, collator, packed(tokenizer, self._folder, self.settings.length))
        self._loaded = _forever(stock.get_train_dataloader())
        self._prepared = _forever([self.load() for _ in range(PREPARED)])
        # From here on the Trainer gets its batches one by one.
        stock.get_train_dataloader = lambda: iter(self._wanted.get, None)
        self.stages.watch("forward", model)
        self.stages.watch("encoder forward", model.base_model)
        stock.accelerator.backward = self.stages.timed("backward", stock.accelerator.backward)
        threading.Thread(target=stock.train, daemon=True).start()
        predicted = [int((next(self._prepared)["labels"] >= 0).sum()) for _ in range(PREPARED)]
        return {
            "visible": self.settings.length,
            "predicted": sum(predicted) / PREPARED / self.settings.sequences,
            "vocabulary": model.config.vocab_size,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "command": [type(stock).__name__, type(model).__name__],
        }

    def _trainer(self, transformers: Any, model: Any, collator: Any, blocks: list[dict[str, list[int]]]) -> Any:
        done = self._done

        class Report(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *arguments: Any, **state: Any) -> None:
                done.put(True)

        arguments = transformers.TrainingArguments(
            tempfile.mkdtemp(),
            per_device_train_batch_size=self.settings.sequences,
            dataloader_num_workers=self.settings.num_workers,
            learning_rate=1e-4,
            weight_decay=0.01,
            max_steps=_ENDLESS,
            bf16=self.settings.precision == "bf16",
            use_cpu=self.settings.device == "cpu",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        return transformers.Trainer(
            model, arguments, data_collator=collator, train_dataset=blocks, callbacks=[Report()]
        )

    def load(self) -> Any:
        """Return the next batch, made by the Trainer's data loader."""
        return next(self._loaded)

    def take_prepared(self) -> Any:
        """Return the next of the batches in memory."""
        return next(self._prepared)

    def step(self, batch: Any) -> bool:
        """Give the Trainer a batch, and wait until it has made the update."""
        self._wanted.put(batch)
        return self._done.get(timeout=600)


def packed(tokenizer: Any, folder: Path, length: int) -> list[dict[str, list[int]]]:
    """Join the lines of the text and cut them into blocks."""
    lines = [line for line in (folder / "text.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
    ids = [number for line in tokenizer(lines)["input_ids"] for number in line]
    ends = range(length, len(ids) + 1, length)
    return [{"input_ids": ids[end - length : end], "attention_mask": [1] * length} for end in ends]


def _forever(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches
