"""Studies: many programs that a plan declares, how they run, and tables of results; ``maelm sweep`` is one."""
