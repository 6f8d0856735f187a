"""Prompting: tasks as cloze tests, where the model predicts a word for each label at a mask (paper, appendix E)."""
