"""Prompting: tasks as cloze tests, whose labels are words that the model predicts at a mask (paper, appendix E)."""
