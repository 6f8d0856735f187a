"""Undo the loss scale of ``--amp`` once.

Reason: fairseq undoes the scale to clip gradients, but makes the update through another object, for which torch undoes
it again: gradients are divided by the scale twice. Adam tolerates this only as long as gradients are larger than its
epsilon. With epsilon 1e-6 and a scale that has grown to 65,536, weights hardly change.
Test: tests/fairseq_fixes/test_amp.py.
"""

from fairseq.optim import AMPOptimizer

from fairseq_maelm.fairseq_fixes.replacements import replaces


@replaces(AMPOptimizer, "step")
def step(self: AMPOptimizer) -> None:
    """Make an update, unless a gradient is infinite, and adapt the scale."""
    # ``clip_grad_norm`` has undone the scale for this same object.
    self.scaler.step(self.optimizer)
    self.scaler.update()
