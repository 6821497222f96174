"""Deduplication: exact and near duplicates by hashes, semantic duplicates by embeddings."""
