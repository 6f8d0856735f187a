"""Sentences scored by masked language models: pseudo-log-likelihoods, minimal pairs, intervals."""
