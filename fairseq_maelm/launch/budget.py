"""FLOPs as the budget of a pretraining, in place of a number of updates."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from fairseq_maelm.architecture.config import DECODER_OPTIONS, complete_config
from fairseq_maelm.architecture.encoder_options import ENCODER_OPTIONS
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.models.flops import BatchShape, ModelShape, muon_flops, training_flops
from fairseq_maelm.options import UsageError

logger = logging.getLogger(__name__)


def update_flops(configuration: Any, vocabulary: int, checkpoint: Checkpoint | None = None) -> float:
    """Count the FLOPs of an update: the matrix products of full sequences, and those of Muon.

    Updates before --half-length-until cost a little less, which is not counted.

    Args:
        configuration: fairseq-train's, of a pretraining.
        vocabulary: number of symbols, <mask> included.
        checkpoint: the one that the training starts from, whose sizes are the model's.
    """
    model, task, optimization = configuration.model, configuration.task, configuration.optimization
    if checkpoint is not None:
        known = ENCODER_OPTIONS + (DECODER_OPTIONS if checkpoint.has_decoder else ())
        for name in known:
            setattr(model, name, getattr(checkpoint.config.model, name))
        if not checkpoint.has_decoder and model.decoder_layers is None:
            model.decoder_layers = model.encoder_layers  # a new shared decoder
    complete_config(model)
    rate, end = task.mask_prob, task.mask_prob_end
    task.mask_prob = rate if end is None else (rate + end) / 2
    updates = optimization.update_freq[0] * configuration.distributed_training.distributed_world_size
    sequences = configuration.dataset.max_tokens // task.tokens_per_sample * updates
    shape = ModelShape.from_config(model, vocabulary)
    flops = training_flops(shape, BatchShape.from_config(task, sequences))
    return flops + (muon_flops(shape) if configuration.optimizer._name == "muon" else 0.0)


def settings_within(budget: float, each: float, options: Mapping[str, Any], given: Collection[str]) -> dict[str, int]:
    """Return the settings of a run of at most ``budget`` FLOPs: "max-update", and "warmup-updates" of a shorter run.

    Args:
        budget: FLOPs of the run.
        each: FLOPs of an update.
        options: the recipe's, for fairseq-train.
        given: names of the settings that the user has chosen.

    Raises:
        UsageError: the budget is less than one update.
    """
    updates = int(budget / each)
    if not updates:
        raise UsageError(f"--flops {budget:g} is less than one update, which takes {each:.3g} FLOPs")
    logger.info("%g FLOPs are %s updates of %.3g FLOPs", budget, f"{updates:,}", each)
    settings = {"max-update": updates}
    usual, warm_up = options.get("max-update"), options.get("warmup-updates")
    if warm_up and usual and updates < int(usual) and "warmup-updates" not in given:
        settings["warmup-updates"] = max(1, round(int(warm_up) * updates / int(usual)))
    return settings
