"""From binarized text to batches: blocks, masking, the dataset and its collater."""
