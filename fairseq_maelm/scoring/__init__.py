"""Sentence scores from masked language models: pseudo-log-likelihoods, minimal pairs, confidence intervals."""
