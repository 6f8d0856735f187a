"""Prompting: a task as a cloze. The words that the model puts at a mask are the labels (paper, appendix E, Table 7)."""
