"""Refuse a ``--best-checkpoint-metric`` that validation does not log, before the first update.

Reason: fairseq looks up the metric only after the first validation, perhaps hours after the start, and then fails with
a KeyError.
Test: tests/robustness/rows.py.
"""

from typing import Any

from fairseq.logging import metrics

# Every criterion logs the loss; fairseq's trainer logs batch sizes and speed.
_ALWAYS, _OF_TRAINER = "loss", {"bsz", "wpb", "wps"}


def check_metric(trainer: Any) -> None:
    """Validate one batch of each validation set if the metric is not the loss; called on all ranks.

    Raises:
        ValueError: the metric is not logged; the message lists the logged metrics.
    """
    cfg = trainer.cfg
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric == _ALWAYS or cfg.dataset.disable_validation:
        return
    for subset in cfg.dataset.valid_subset.split(","):
        with metrics.aggregate(new_root=True) as found:
            trainer.valid_step(trainer.get_valid_iterator(subset).first_batch)
        logged = sorted(name for name in {*found} - _OF_TRAINER if not name.startswith("_"))
        if metric not in logged:
            raise ValueError(
                f"validation on {subset} logs no {metric}, but only {', '.join(logged)}: choose one of these as "
                f"--best-checkpoint-metric, or set the option of the criterion that adds {metric}"
            )
