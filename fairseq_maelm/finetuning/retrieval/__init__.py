"""Retrieval with one encoder for queries and documents: data in BEIR's layout, embeddings, exact search, measures."""
