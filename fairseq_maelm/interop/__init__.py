"""The ways to other libraries and back: Hugging Face transformers, ONNX, fairseq's RoBERTa."""
