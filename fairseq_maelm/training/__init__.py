"""What starts fairseq-train: options as words, recipes, and the progress that its log shows."""
