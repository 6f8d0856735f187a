"""Trains the models of the authors' code, in a separate process because their fork hides the installed fairseq.

Usage: authors_process.py CODE ORDERS OUTPUT, with the benchmarks in PYTHONPATH. ORDERS is a JSON file of names and
options of their fairseq-train. For each, OUTPUT gets NAME.float32.pt and NAME.float64.pt: weights, batches and results.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from training_step.authors_code import import_fork
from training_step.fairseq_session import configuration


def double_cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Compute their cross-entropy without rounding to single precision, as they do."""
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


class Run:
    """A model of theirs with random weights, trained by their task, criterion, optimizer and trainer."""

    def __init__(self, code: Path, words: list[str], dtype: torch.dtype) -> None:
        config = configuration(words, code)
        from fairseq import modules, tasks
        from fairseq.trainer import Trainer

        if dtype == torch.float64:
            modules.cross_entropy = double_cross_entropy
        task = tasks.setup_task(config.task)
        self.model = task.build_model(config.model).to(dtype)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.model.parameters():
            # Large enough that no part is lost in rounding errors, and the same in both precisions.
            parameter.data = (0.3 * torch.randn(parameter.shape, generator=generator)).to(dtype)
        self.criterion = task.build_criterion(config.criterion)
        self.trainer = Trainer(config, task, self.model, self.criterion)
        iterator = self.trainer.get_train_iterator(1)
        self.batches = list(iterator.next_epoch_itr(shuffle=False))
        self.trainer.begin_epoch(1)

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all parameters, tied ones once."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def last_batch(self) -> dict[str, Any]:
        """Return the logits of the last batch, which has the longest sequences, and the gradients of its loss."""
        caught: list[Tensor] = []
        handle = self.model.register_forward_hook(lambda module, inputs, output: caught.append(output[0].detach()))
        loss, _, _ = self.criterion(self.model.train(), self.batches[-1])
        handle.remove()
        loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}
        self.model.zero_grad()
        return {"logits": caught[0], "gradients": gradients}

    def losses(self) -> list[float]:
        """Make an update with each batch; return the losses before it, in nats for each prediction."""
        losses: list[float] = []
        forward = self.criterion.forward

        def recorded(*arguments: Any, **options: Any) -> Any:
            result = forward(*arguments, **options)
            losses.append(result[0].item() / int(result[1]))
            return result

        self.criterion.forward = recorded
        for batch in self.batches:
            self.trainer.train_step([batch])
        return losses

    def buckets(self) -> Tensor | None:
        """Return the relative bucket of each query and key, where there are buckets."""
        return getattr(self.model.encoder.sentence_encoder, "rp_bucket", None)


def main(code: Path, orders: dict[str, list[str]], output: Path) -> None:
    """Compute with every model, in single and in double precision, and write the results."""
    import_fork(code)
    logging.disable(logging.INFO)
    for dtype in (torch.float32, torch.float64):
        for name, words in orders.items():
            run = Run(code, words, dtype)
            results = {"weights": run.weights(), "batches": run.batches, "buckets": run.buckets(), **run.last_batch()}
            if dtype == torch.float32:
                # Their trainer cannot clip gradients in double precision.
                results.update(losses=run.losses(), updated=run.weights())
            torch.save(results, output / f"{name}.{str(dtype).removeprefix('torch.')}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), Path(sys.argv[3]))
