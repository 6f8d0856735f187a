"""Classification and regression of single sentences and sentence pairs."""
