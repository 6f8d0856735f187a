"""Analysis of representations: effective rank, the subspace of [MASK], and the theorem behind MAE-LM in numbers."""
