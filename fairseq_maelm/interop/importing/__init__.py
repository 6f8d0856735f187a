"""Encoders from elsewhere as checkpoints of this package: Hugging Face folders and fairseq's RoBERTa."""
