"""Export to Hugging Face: helpers and tests."""
