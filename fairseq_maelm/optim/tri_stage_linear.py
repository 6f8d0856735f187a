"""``--lr-scheduler tri_stage_linear``: fairseq's tri_stage, but the rate falls linearly in its last phase.

fairseq's falls exponentially: half of the last phase is spent below a tenth of the rate, where little is learned.
"""

from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.tri_stage_lr_scheduler import TriStageLRSchedule, TriStageLRScheduleConfig


@register_lr_scheduler("tri_stage_linear", dataclass=TriStageLRScheduleConfig)
class LinearTriStageSchedule(TriStageLRSchedule):
    """A rate that rises from ``--init-lr-scale`` to 1 times ``--lr``, stays, and falls to ``--final-lr-scale``.

    ``--phase-ratio`` gives the phases as shares of ``--max-update``. All options are those of tri_stage.
    """

    def step_update(self, num_updates: int) -> float:
        """Return the rate of the next update, and give it to the optimizer."""
        fallen = num_updates - self.warmup_steps - self.hold_steps
        if fallen <= 0:
            return float(super().step_update(num_updates))
        share = min(1.0, fallen / self.decay_steps)
        self.lr = self.peak_lr + share * (self.final_lr - self.peak_lr)
        self.optimizer.set_lr(self.lr)
        return float(self.lr)
