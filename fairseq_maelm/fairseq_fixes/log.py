"""Suppress useless or wrong log lines and warnings at the start of fairseq's training.

fairseq treats all absent parameters (``bias=None``) as one shared parameter, and logs a line for each of them. It logs
four lines whenever it makes batches, and causes warnings in other libraries that users of fairseq-train cannot avoid.
Test: tests/fairseq_fixes/test_log.py.
"""

import logging
import warnings

import torch
from fairseq import trainer

from fairseq_maelm.fairseq_fixes import changes, replaces

# Patterns for the start of warnings: from Hydra about fairseq's use of Hydra, from torch about loaders and autocast.
_WARNINGS = (
    r"\s*The version_base parameter is not specified",
    r"[\s\S]*(hydra|Hydra|'config'|strict flag)",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
)


@replaces(
    trainer,
    "_catalog_shared_params",
    why="the log reports shared biases that do not exist, one line per layer",
)
def _find_shared(model: torch.nn.Module) -> list[list[str]]:
    """Return lists of names, one for each parameter with several names; absent biases are ignored."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [each for each in names.values() if len(each) > 1]


@changes(
    "loggers of `fairseq_task` and `utils`, filters of `warnings`",
    why="details about batches, and warnings about fairseq's use of Hydra and torch, hide important lines",
    acts_on="log lines and warnings of the process",
    upstream="in part: by fixing the causes of the warnings",
)
def _leave_out_noise() -> None:
    """Silence fairseq's details about batches and the known warnings."""
    logging.getLogger("fairseq.tasks.fairseq_task").setLevel(logging.WARNING)
    logging.getLogger("fairseq.utils").addFilter(lambda record: "has already been imported" not in record.getMessage())
    for text in _WARNINGS:
        warnings.filterwarnings("ignore", text)
