"""Changes of fairseq's own behavior, for every task that is trained with the plugin.

Each subject has a module, whose docstring has the reason and the test that fails without the change. The versions are
fairseq 0.12.2 and fairseq-fixed 0.12.3.1; their code is the same wherever something is replaced.
"""


def mend_fairseq() -> None:
    """Apply all changes in this process; a second call has no effect."""
    # These import fairseq, which takes seconds, and importing the package must be fast.
    from fairseq_maelm.fairseq_fixes.checkpoint_files import write_whole_checkpoints
    from fairseq_maelm.fairseq_fixes.collectives import mend_exchange
    from fairseq_maelm.fairseq_fixes.early_stopping import keep_patience
    from fairseq_maelm.fairseq_fixes.ema import mend_averages
    from fairseq_maelm.fairseq_fixes.incomplete_batches import keep_every_example
    from fairseq_maelm.fairseq_fixes.loading import load_as_plain_data
    from fairseq_maelm.fairseq_fixes.log_noise import leave_out_noise
    from fairseq_maelm.fairseq_fixes.memory import keep_memory_in_training
    from fairseq_maelm.fairseq_fixes.resuming import guard_save_folder
    from fairseq_maelm.fairseq_fixes.setup_files import keep_setup_files
    from fairseq_maelm.fairseq_fixes.stopping import let_tasks_stop
    from fairseq_maelm.fairseq_fixes.untrusted_models import look_before_building

    mend_exchange()
    write_whole_checkpoints()
    load_as_plain_data()
    mend_averages()
    keep_patience()
    guard_save_folder()
    keep_every_example()
    look_before_building()
    let_tasks_stop()
    keep_setup_files()
    keep_memory_in_training()
    leave_out_noise()
