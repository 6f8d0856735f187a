"""From a recipe to a running fairseq-train: recipes, machine, options, command line, save folder, screen, progress."""
