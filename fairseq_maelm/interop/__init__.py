"""Conversion to and from other libraries: Hugging Face transformers, fairseq's RoBERTa."""
