"""Studies: run the many programs that a plan declares, and make tables of the results. ``maelm sweep`` is a study."""
