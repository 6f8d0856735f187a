"""Suppress lines that fairseq writes at the start of a training and that are useless or wrong.

Reason: fairseq treats all parameters that a model lacks as one shared parameter, and logs a line for each absent bias.
It logs four lines whenever batches are made, and causes warnings of other libraries that users of fairseq-train cannot
change.
Test: tests/fairseq_fixes/test_log_noise.py.
"""

import logging
import warnings

import torch
from fairseq import trainer

from fairseq_maelm.fairseq_fixes.replacements import replaces

# Beginnings of warnings: of Hydra about fairseq's use of it, and of torch about fairseq's loaders and autocast.
_WARNINGS = (
    r"\s*The version_base parameter is not specified",
    r"[\s\S]*(hydra|Hydra|'config'|strict flag)",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
)


@replaces(trainer, "_catalog_shared_params")
def _find_shared(model: torch.nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several names; biases that a module lacks do not count."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [each for each in names.values() if len(each) > 1]


def leave_out_noise() -> None:
    """Make fairseq log no details of batches and cause no known warnings."""
    logging.getLogger("fairseq.tasks.fairseq_task").setLevel(logging.WARNING)
    logging.getLogger("fairseq.utils").addFilter(lambda record: "has already been imported" not in record.getMessage())
    for text in _WARNINGS:
        warnings.filterwarnings("ignore", text)
