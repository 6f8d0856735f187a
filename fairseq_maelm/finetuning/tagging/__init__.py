"""Token labeling: a label for each word, with data in CoNLL or CoNLL-U files."""
