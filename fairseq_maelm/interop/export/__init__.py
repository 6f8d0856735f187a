"""Export of checkpoints to Hugging Face folders whose models compute the same results."""
