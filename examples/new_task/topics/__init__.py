"""Topics: any number of labels for a text."""
