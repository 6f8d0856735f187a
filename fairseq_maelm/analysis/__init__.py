"""Analysis of representations: effective rank, the subspace of <mask>, and the theorem behind MAE-LM in numbers."""
