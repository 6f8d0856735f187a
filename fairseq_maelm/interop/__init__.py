"""Conversion to and from other libraries: Hugging Face transformers, ONNX, fairseq's RoBERTa."""
