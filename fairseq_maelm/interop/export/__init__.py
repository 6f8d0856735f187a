"""Export of checkpoints to Hugging Face folders that compute the same."""
