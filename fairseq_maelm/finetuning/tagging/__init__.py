"""Token labeling: a label for each word, in CoNLL-U or CoNLL files."""
