"""Import Hugging Face models and fairseq's RoBERTa as checkpoints for this package."""
