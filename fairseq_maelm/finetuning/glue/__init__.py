"""GLUE (Wang et al., 2018): its eight tasks from the official files to fairseq's folders, and back to predictions."""
