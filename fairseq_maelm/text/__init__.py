"""Text and its vocabulary: cleaning, sentencepiece models and tokenizers, fairseq's dictionary."""
