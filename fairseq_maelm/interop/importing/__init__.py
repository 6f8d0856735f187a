"""Import of Hugging Face folders and of fairseq's RoBERTa as checkpoints of this package."""
