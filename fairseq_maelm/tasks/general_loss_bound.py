"""The loss of general text during domain adaptation, which measures forgetting, and a bound on it."""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics

from fairseq_maelm.data.dataset import MaskedBlockDataset

logger = logging.getLogger(__name__)

# The name of the validation set of general text, and the key that marks its batches.
GENERAL = "general"
# The loss before the first update is kept in a meter of fairseq, which checkpoints save for resumed runs but which
# --finetune-from-model does not load.
_METERS, _METER = "general_at_start", "loss"


def check_general_options(cfg: Any) -> None:
    """Raise ValueError for wrong options about general text."""
    if not 0.0 <= cfg.general_ratio < 1.0:
        raise ValueError(f"--general-ratio must be in [0, 1), not {cfg.general_ratio}")
    if cfg.general_loss_bound is not None and not cfg.general_loss_bound > 0.0:
        raise ValueError(f"--general-loss-bound must be more than 0 bits, not {cfg.general_loss_bound}")
    if cfg.general_data is None and (cfg.general_ratio or cfg.general_loss_bound is not None):
        raise ValueError("--general-ratio and --general-loss-bound need --general-data")


class GeneralBlockDataset(MaskedBlockDataset):
    """The validation set of general text, whose batches are marked because fairseq does not pass on a set's name."""

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Collate a batch, and mark it unless it is empty."""
        batch = super().collater(samples)
        return {**batch, GENERAL: True} if batch else batch


class GeneralLossBound:
    """A bound on the loss of general text: ``bound`` bits per predicted token above its value at the start."""

    def __init__(self, bound: float) -> None:
        self.bound = bound

    @property
    def start(self) -> float | None:
        """The loss before the first update, in bits per predicted token; None if it is not measured yet."""
        meter = metrics.get_meter(_METERS, _METER)
        return None if meter is None else float(meter.avg)

    def measure_start(self, model: Any, samples: Iterable[Any]) -> None:
        """Measure the loss before the first update over the validation samples of all ranks."""
        loss = mean_loss(model, samples)
        with metrics.aggregate(_METERS, new_root=True):
            metrics.log_scalar(_METER, loss)
        logger.info("general loss before the first update: %.3f bits, at most %.3f allowed", loss, loss + self.bound)

    def excess(self, loss: float) -> str | None:
        """Return the reason to end the run after a validation loss in bits per predicted token, or None."""
        # NaN ends the run too.
        if self.start is None or loss <= self.start + self.bound:
            return None
        return (
            f"the general loss is {loss:.3f} bits, above its bound of {self.start + self.bound:.3f} ({self.start:.3f} "
            f"before the first update + {self.bound:g}). This state is not saved; use the last checkpoint"
        )


@torch.no_grad()
def mean_loss(model: Any, samples: Iterable[Any]) -> float:
    """Return the loss over the samples of all ranks in bits per predicted token, as the criterion ``maelm`` does."""
    embedding = model.encoder.embed_tokens.weight
    sums = torch.zeros(2, dtype=torch.float64)
    training = model.training
    model.eval()
    for sample in samples:
        if not sample:
            continue
        if embedding.is_cuda:
            sample = utils.move_to_cuda(sample, embedding.device)
        loss, _ = model(**sample["net_input"], target=sample["target"])
        sums += torch.tensor([float(loss), sample["target"].numel()], dtype=torch.float64)
    model.train(training)
    if torch.distributed.is_initialized():
        sums = sums.to(embedding.device)
        distributed_utils.all_reduce(sums, group=distributed_utils.get_data_parallel_group())
    return float(sums[0] / sums[1]) / math.log(2)
