"""Refuse, before the first update, a ``--best-checkpoint-metric`` or ``--max-tokens-valid`` that validation cannot use.

Reason: fairseq makes the batches of validation and looks up the metric only at the first validation, perhaps hours
after the start, and then fails with a traceback.
Test: tests/robustness/rows.py.
"""

from typing import Any

from fairseq.logging import metrics

# Every criterion logs the loss; fairseq's trainer logs batch sizes and speed.
_ALWAYS, _OF_TRAINER = "loss", {"bsz", "wpb", "wps"}


def check_validation(trainer: Any) -> None:
    """Make the batches of each validation set and, if the metric is not the loss, validate one; called on all ranks.

    Raises:
        ValueError: a sequence fits into no batch, or the metric is not logged; the message lists the logged metrics.
    """
    cfg = trainer.cfg
    metric = cfg.checkpoint.best_checkpoint_metric
    for subset in () if cfg.dataset.disable_validation else cfg.dataset.valid_subset.split(","):
        try:
            batches = trainer.get_valid_iterator(subset)
        except ValueError as error:
            # Data sets name the option of training.
            raise ValueError(str(error).replace("--max-tokens ", "--max-tokens-valid ")) from error
        if metric == _ALWAYS:
            continue
        with metrics.aggregate(new_root=True) as found:
            trainer.valid_step(batches.first_batch)
        logged = sorted(name for name in {*found} - _OF_TRAINER if not name.startswith("_"))
        if metric not in logged:
            raise ValueError(
                f"validation on {subset} logs no {metric}, but only {', '.join(logged)}: choose one by --metric, "
                f"in fairseq-train --best-checkpoint-metric, or set the criterion's option that adds {metric}"
            )
