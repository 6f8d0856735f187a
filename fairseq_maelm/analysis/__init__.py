"""What representations look like: effective rank, where [MASK] lives, and the theorem behind MAE-LM in numbers."""
