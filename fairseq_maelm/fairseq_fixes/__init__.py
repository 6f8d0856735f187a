"""What this package changes in fairseq itself, for every task that is trained with the plugin.

One module for each subject; its docstring says why, and which test breaks without it. The versions are fairseq 0.12.2
and fairseq-fixed 0.12.3.1, whose code is the same wherever something is replaced.
"""


def mend_fairseq() -> None:
    """Apply all changes in this process; applying them again does no harm."""
    # Each of them imports fairseq, which takes seconds; the package itself is imported without.
    from fairseq_maelm.fairseq_fixes.averages import mend_averages
    from fairseq_maelm.fairseq_fixes.batches import keep_every_example
    from fairseq_maelm.fairseq_fixes.building import look_before_building
    from fairseq_maelm.fairseq_fixes.checkpoint_files import write_whole_checkpoints
    from fairseq_maelm.fairseq_fixes.companions import keep_setup_files
    from fairseq_maelm.fairseq_fixes.exchange import mend_exchange
    from fairseq_maelm.fairseq_fixes.memory import keep_memory_in_training
    from fairseq_maelm.fairseq_fixes.patience import keep_patience
    from fairseq_maelm.fairseq_fixes.resuming import guard_save_folder
    from fairseq_maelm.fairseq_fixes.stopping import let_tasks_stop

    mend_exchange()
    write_whole_checkpoints()
    mend_averages()
    keep_patience()
    guard_save_folder()
    keep_every_example()
    look_before_building()
    let_tasks_stop()
    keep_setup_files()
    keep_memory_in_training()
