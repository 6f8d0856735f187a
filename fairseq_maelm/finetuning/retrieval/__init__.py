"""Retrieval with one encoder for queries and documents: data in BEIR layout, embeddings, exact search, measures."""
