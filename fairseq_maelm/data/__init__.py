"""From binarised text to batches: blocks, masking, the dataset and its collater."""
