"""The start of fairseq-train by other programs: its options as words, recipes, its log as progress."""
