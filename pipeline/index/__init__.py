"""Passages of a corpus, and their index by words (BM25): built by Beam, searched from disk."""
