"""Token labeling: one label for every word, read from and written to the files that taggers are trained on."""
