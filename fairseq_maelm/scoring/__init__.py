"""Scores of sentences by masked language models: pseudo-log-likelihoods, minimal pairs, intervals."""
